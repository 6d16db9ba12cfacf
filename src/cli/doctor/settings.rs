//! The settings in force, and who a process started in this environment would be.

use std::fmt::Write;

use super::report::{Fact, Section};
use ringway_control::launch::{Explicit, Here, Launch, Vars};
use ringway_control::rpc::credentials::Credentials;
use ringway_control::settings::{Settings, SettingsError};

/// What differs from the defaults, and every wrong setting.
pub(super) fn section(given: &Result<Settings, SettingsError>) -> Section {
    let mut section = Section::new("Settings");
    match given {
        Ok(settings) => {
            let rows: Vec<_> = settings.effective().collect();
            for row in &rows {
                let note = if row.given { "from the environment" } else { "default" };
                section.facts.push(Fact {
                    name: row.setting.name.to_owned(),
                    value: row.value.clone().unwrap_or_else(|| "unset".to_owned()),
                    note: note.to_owned(),
                    only_json: !row.given,
                });
            }
            let others = rows.iter().filter(|row| !row.given).count();
            section.facts.push(Fact {
                name: "at their defaults".to_owned(),
                value: format!("{others} settings"),
                note: "ringway doctor --settings lists them".to_owned(),
                only_json: false,
            });
        }
        Err(error) => {
            for problem in &error.problems {
                section.problem(problem.to_string(), "correct or unset it; what follows shows the defaults");
            }
        }
    }
    section
}

/// Every setting with its value, range and meaning.
pub(super) fn listed(settings: &Settings) -> String {
    let mut text = String::new();
    for row in settings.effective() {
        let value = row.value.unwrap_or_else(|| "unset".to_owned());
        let from = if row.given { "from the environment" } else { "default" };
        let allowed = row.setting.kind.allowed(row.setting.unit);
        let _ = writeln!(
            text,
            "{}={value}  ({from})\n    {}\n    Allowed: {allowed}.\n",
            row.setting.name, row.setting.doc
        );
    }
    text
}

/// By what this process and others would know each other.
pub(super) fn security(settings: &Settings) -> Section {
    let mut section = Section::new("Who may take part");
    section.fact("token", if settings.token.is_some() { "set" } else { "none" });
    match Credentials::from_settings(settings) {
        Err(error) => section.problem(error.to_string(), "correct the file; docs/security.md has a recipe"),
        Ok(credentials) => {
            let names = credentials.tls().map_or("none".to_owned(), |tls| format!("for {}", tls.names()));
            section.fact("certificate", names);
            if credentials.is_empty() && !settings.insecure {
                section.noted(
                    "services",
                    "on loopback alone",
                    "set RINGWAY_TOKEN or RINGWAY_TLS_* to have them listen beyond this host",
                );
            }
        }
    }
    section
}

/// Which launcher this environment comes from.
pub(super) fn launch(settings: &Settings) -> Section {
    let mut section = Section::new("Launch");
    match Launch::discover(&Explicit::default(), settings, &Vars::from_env(), &Here::find()) {
        Ok(launch) => {
            let rank = format!("rank {} of {}, job {}", launch.rank.0, launch.world_size, launch.job_id);
            section.noted("this process would be", rank, format!("found by {}", launch.found_by));
            if launch.world_size > 1 {
                let by = if launch.coordinator.i_host { "by this rank" } else { "by another process" };
                section.fact("coordination service", format!("{}, run {by}", launch.coordinator.address));
            }
        }
        Err(error) => {
            section.problem(error.to_string(), "until then, no rank started in this environment can join")
        }
    }
    section
}
