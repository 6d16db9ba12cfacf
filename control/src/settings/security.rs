//! The settings of who may take part: the token, and the files of TLS.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use super::kind::{Kind, MAX_TOKEN_CHARS};
use super::value::{self, Secret};
use super::{Problem, Settings, SettingsError, Values};

/// Where certificates and keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `RINGWAY_TLS_CERT`.
    pub certificate: PathBuf,
    /// `RINGWAY_TLS_KEY`.
    pub key: PathBuf,
    /// `RINGWAY_TLS_CA`.
    pub authorities: PathBuf,
    /// `RINGWAY_TLS_NAME`.
    pub name: Option<String>,
    /// What certificate, key and authorities were given as, for errors: these settings, or others in their place.
    pub settings: [&'static str; 3],
}

/// The three that go together.
const FILES: [&str; 3] = ["RINGWAY_TLS_CERT", "RINGWAY_TLS_KEY", "RINGWAY_TLS_CA"];
const TOKEN: &str = "RINGWAY_TOKEN";
const TOKEN_FILE: &str = "RINGWAY_TOKEN_FILE";

impl Values<'_> {
    /// `None` as well where one of the files is missing, which [`Settings::security_problems`] tells.
    pub(super) fn tls_files(&self) -> Option<TlsFiles> {
        let [certificate, key, authorities] = FILES.map(|name| self.text(name).map(PathBuf::from));
        let name = self.text("RINGWAY_TLS_NAME");
        Some(TlsFiles {
            certificate: certificate?,
            key: key?,
            authorities: authorities?,
            name,
            settings: FILES,
        })
    }
}

impl Settings {
    /// Reads the settings from this process's environment and the options of its command line, which go before it.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_env_and(options: &[(&'static str, OsString)]) -> Result<Self, SettingsError> {
        let is_given = |name: &OsString| options.iter().any(|(option, _)| name == option);
        let environment = std::env::vars_os().filter(|(name, _)| !is_given(name));
        Self::from_os_pairs(
            environment.chain(options.iter().map(|(name, value)| (name.into(), value.clone()))),
        )
    }

    /// What is wrong with these settings together. Reads the token where a file has it.
    pub(super) fn security_problems(&mut self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let has = |name: &&&'static str| self.given.contains_key(**name);
        if let (Some(given), Some(missing)) = (FILES.iter().find(has), FILES.iter().find(|name| !has(name))) {
            problems.push(Problem::Incomplete { given, missing });
        } else if let (true, None) = (self.given.contains_key("RINGWAY_TLS_NAME"), &self.tls) {
            problems.push(Problem::Incomplete { given: "RINGWAY_TLS_NAME", missing: FILES[0] });
        }
        match self.given.get(TOKEN_FILE) {
            Some(path) if self.token.is_some() => {
                let one = format!("{TOKEN}=(hidden)");
                problems.push(Problem::Contradiction { one, other: format!("{TOKEN_FILE}={path}") });
            }
            Some(path) => match read_token(path) {
                Ok(token) => self.token = Some(token),
                Err(why) => problems.push(Problem::TokenFile { path: path.clone(), why }),
            },
            None => {}
        }
        problems
    }
}

/// The token in a file, whose last line may end.
fn read_token(path: &str) -> Result<Secret, String> {
    let unreadable =
        |error: std::io::Error| format!("it cannot be read ({error}): correct the path, or its mode");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    // A little more than a token may have, so that one that is too long is seen to be.
    file.take(MAX_TOKEN_CHARS as u64 + 4).read_to_string(&mut text).map_err(unreadable)?;
    let token = text.trim_end();
    match value::read(&Kind::Token, token, false) {
        Some(_) => Ok(Secret::new(token)),
        None => Err(format!("it does not hold a token alone: write {} into it", Kind::Token.allowed(""))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::from_pairs(pairs.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_long_and_goes_into_a_header() {
        for bad in ["short", "sixteen letters and spaces", "p\u{e4}ssw\u{f6}rter-von-heute", &"x".repeat(513)]
        {
            let error = read(&[(TOKEN, bad)]).unwrap_err();
            assert!(error.starts_with("RINGWAY_TOKEN=(hidden) is not allowed: give 16 to 512"), "{error}");
        }
        assert!(read(&[(TOKEN, "0123456789abcdef")]).unwrap().token.is_some());
        assert!(read(&[]).unwrap().token.is_none());
    }

    #[test]
    fn a_file_may_have_it() {
        let path = std::env::temp_dir().join(format!("ringway-token-{}", std::process::id()));
        let file = path.to_str().unwrap();
        let error = read(&[(TOKEN_FILE, "/nowhere/at/all")]).unwrap_err();
        assert!(error.contains("it cannot be read"), "{error}");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(read(&[(TOKEN_FILE, file)]).unwrap().token.unwrap().reveal(), "0123456789abcdef");
        let error = read(&[(TOKEN_FILE, file), (TOKEN, "0123456789abcdef")]).unwrap_err();
        assert!(error.contains("contradict") && !error.contains("0123"), "{error}");
        for bad in ["", "short", "two lines of it\nand more of it"] {
            std::fs::write(&path, bad).unwrap();
            assert!(read(&[(TOKEN_FILE, file)]).unwrap_err().contains("it does not hold a token"), "{bad:?}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn files_of_tls_go_together() {
        let all = [("RINGWAY_TLS_CERT", "c"), ("RINGWAY_TLS_KEY", "k"), ("RINGWAY_TLS_CA", "a")];
        assert!(read(&all).unwrap().tls.is_some_and(|tls| tls.name.is_none()));
        for left_out in 0..3 {
            let some: Vec<_> = (0..3).filter(|i| *i != left_out).map(|i| all[i]).collect();
            let error = read(&some).unwrap_err();
            assert!(error.contains(&format!("{} is not: give both", all[left_out].0)), "{error}");
        }
        assert!(read(&[("RINGWAY_TLS_NAME", "n")]).unwrap_err().contains("RINGWAY_TLS_CERT is not"));
        assert!(!read(&[]).unwrap().insecure && read(&[("RINGWAY_INSECURE", "1")]).unwrap().insecure);
    }
}
