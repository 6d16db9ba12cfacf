//! `ringway completions SHELL`: prints what the shell needs to complete this command line.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print shell completions
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ringway completions bash > /etc/bash_completion.d/ringway
  source <(ringway completions bash)                                 (this shell only)
  ringway completions zsh > ~/.zfunc/_ringway                        (with ~/.zfunc in $fpath)
  ringway completions fish > ~/.config/fish/completions/ringway.fish")]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

/// Prints the completions.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn run(args: &Args) -> io::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::VisibleCli::command(), "ringway", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
