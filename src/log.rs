//! What is logged to standard error, as `RINGWAY_LOG` asks.

use ringway_control::settings::Settings;
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// `RINGWAY_LOG` is no filter.
#[derive(Debug, thiserror::Error)]
#[error(
    "RINGWAY_LOG={given} is no filter ({why}): give off, error, warn, info, debug or trace, or such a level per module, as in ringway_dataplane=trace,info"
)]
pub struct LogError {
    /// What was given.
    pub given: String,
    /// What is wrong with it.
    pub why: String,
}

/// Begins to log to standard error. A program that has set up a subscriber of its own keeps it, and a second call
/// changes nothing.
///
/// # Errors
/// [`LogError`].
pub fn start(settings: &Settings) -> Result<(), LogError> {
    let filter: Targets = settings
        .log
        .parse()
        .map_err(|why| LogError { given: settings.log.clone(), why: format!("{why}") })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // An error says that there is a subscriber already.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Ok(())
}
