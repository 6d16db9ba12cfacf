//! Options of who may take part, in place of settings.

use std::ffi::OsString;
use std::path::PathBuf;

/// Who may take part
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Who may take part")]
pub(crate) struct SecurityArgs {
    /// A file with the secret that all processes of the job share [RINGWAY_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// This process's certificate, PEM [RINGWAY_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its key, PEM [RINGWAY_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The authorities whose certificates are taken, PEM [RINGWAY_TLS_CA]
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl SecurityArgs {
    /// The settings that they stand for.
    pub(crate) fn settings(&self) -> Vec<(&'static str, OsString)> {
        let given = [
            ("RINGWAY_TOKEN_FILE", &self.token_file),
            ("RINGWAY_TLS_CERT", &self.tls_cert),
            ("RINGWAY_TLS_KEY", &self.tls_key),
            ("RINGWAY_TLS_CA", &self.tls_ca),
        ];
        given.into_iter().filter_map(|(name, path)| Some((name, path.clone()?.into_os_string()))).collect()
    }
}
