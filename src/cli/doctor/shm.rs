//! Shared memory between the ranks of a host, and what is in the way of its faster ways.

use super::report::{Section, Severity};
use super::size;
use ringway_control::settings::Settings;
use ringway_dataplane::fabric::Policy;
use ringway_dataplane::shm::survey::Survey;

/// What this host allows, and what a rank would use of it.
pub(super) fn section(settings: &Settings) -> Section {
    let mut section = Section::new("Shared memory between ranks");
    describe(&mut section, &Survey::here(), settings.shm_policy(), settings.shm_cma);
    section
}

fn describe(section: &mut Section, found: &Survey, policy: Policy, attach: bool) {
    let severity = if policy == Policy::Require { Severity::Problem } else { Severity::Advice };
    let refused = found.home.as_ref().err().or(found.queues.as_ref().err());
    match (policy, refused) {
        (Policy::Off, _) => section.fact("used", "no: the settings switch it off (RINGWAY_SHM, RINGWAY_NET)"),
        (_, None) => section.noted(
            "used",
            "yes",
            "between processes of one user in one network namespace; others of this host are reached by TCP",
        ),
        (_, Some(why)) => {
            section.fact("used", "no");
            section.find(
                severity,
                format!("shared memory cannot be used: {why}"),
                "mount /proc, raise ulimit -n and -f",
            );
        }
    }
    match &found.blocks {
        Ok(bytes) => {
            section.fact("buffers of ringway", format!("read in place, up to {}", size(*bytes as u64)))
        }
        Err(why) => {
            section.fact("buffers of ringway", "not read in place");
            section.find(
                Severity::Advice,
                format!("memory cannot be shown to other ranks: {why}"),
                "raise ulimit -v and ulimit -f; until then large messages are copied twice",
            );
        }
    }
    let others = match attach {
        false => "copied through a queue",
        true => "read by process_vm_readv, where ptrace and seccomp allow it (RINGWAY_SHM_CMA)",
    };
    section.fact("other buffers", others);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn text(found: &Survey, policy: Policy) -> String {
        let mut section = Section::new("x");
        describe(&mut section, found, policy, false);
        format!("{section:?}")
    }

    #[test]
    fn what_is_in_the_way_is_named_with_its_remedy() {
        let mut found = Survey::here();
        assert!(text(&found, Policy::Prefer).contains("read in place"));
        assert!(text(&found, Policy::Off).contains("RINGWAY_SHM"));
        assert!(text(&found, Policy::Prefer).contains("copied through a queue"));
        found.queues = Err(io::Error::other("no more descriptors"));
        let said = text(&found, Policy::Require);
        assert!(said.contains("no more descriptors") && said.contains("Problem"), "{said}");
        found.blocks = Err(io::Error::other("no address space"));
        assert!(text(&found, Policy::Prefer).contains("no address space"));
    }
}
