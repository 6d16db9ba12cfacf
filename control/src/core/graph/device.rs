//! Names of devices: `/job:worker/replica:0/task:1/device:CPU:0`, or any part of that.

use std::fmt;

/// A device's name; parts that are not given are free. The order of parts on input does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName {
    /// Job.
    pub job: Option<String>,
    /// Replica; 0 in all that we make.
    pub replica: Option<u32>,
    /// Index of the task in its job.
    pub task: Option<u32>,
    /// Type, in capitals, such as `CPU`.
    pub kind: Option<String>,
    /// Index among the devices of its type on the task.
    pub index: Option<u32>,
}

/// Two names ask for different things.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' and '{1}' name different devices")]
pub struct DeviceConflict(pub Box<DeviceName>, pub Box<DeviceName>);

impl DeviceName {
    /// Reads a name. `None` when it is none. Empty text is the name with all parts free.
    ///
    /// Takes the old forms `/cpu:0` and `/gpu:*` too.
    #[must_use]
    pub fn parse(text: &str) -> Option<DeviceName> {
        let mut name = DeviceName::default();
        for part in text.split('/').filter(|part| !part.is_empty()) {
            name.take(part)?;
        }
        (text.is_empty() || text.starts_with('/')).then_some(name)
    }

    fn take(&mut self, part: &str) -> Option<()> {
        let (head, rest) = part.split_once(':')?;
        match head {
            "job" => self.job = Some(rest.to_owned()).filter(|job| !job.is_empty()),
            "replica" => self.replica = number(rest)?,
            "task" => self.task = number(rest)?,
            "device" => {
                let (kind, index) = rest.split_once(':').unwrap_or((rest, "*"));
                self.set_kind(kind, index)?;
            }
            // Lower-case short forms.
            "cpu" | "gpu" | "CPU" | "GPU" => self.set_kind(head, rest)?,
            _ => return None,
        }
        Some(())
    }

    fn set_kind(&mut self, kind: &str, index: &str) -> Option<()> {
        let sound = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if kind != "*" {
            if kind.is_empty() || !kind.chars().all(sound) {
                return None;
            }
            self.kind = Some(kind.to_ascii_uppercase());
        }
        self.index = number(index)?;
        Some(())
    }

    /// The full name of a task's first CPU.
    #[must_use]
    pub fn cpu(job: &str, task: u32) -> DeviceName {
        DeviceName {
            job: Some(job.to_owned()),
            replica: Some(0),
            task: Some(task),
            kind: Some("CPU".to_owned()),
            index: Some(0),
        }
    }

    /// Whether no part is free.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.job.is_some()
            && self.replica.is_some()
            && self.task.is_some()
            && self.kind.is_some()
            && self.index.is_some()
    }

    /// Whether all that this name asks for is so of `full`.
    #[must_use]
    pub fn covers(&self, full: &DeviceName) -> bool {
        fn fits<T: PartialEq>(asked: &Option<T>, there: &Option<T>) -> bool {
            asked.is_none() || asked == there
        }
        fits(&self.job, &full.job)
            && fits(&self.replica, &full.replica)
            && fits(&self.task, &full.task)
            && fits(&self.kind, &full.kind)
            && fits(&self.index, &full.index)
    }

    /// What both ask for.
    ///
    /// # Errors
    /// When they ask for different jobs, replicas, tasks, types or indices.
    pub fn merge(&self, other: &DeviceName) -> Result<DeviceName, DeviceConflict> {
        fn both<T: PartialEq + Clone>(a: &Option<T>, b: &Option<T>) -> Result<Option<T>, ()> {
            match (a, b) {
                (Some(a), Some(b)) if a != b => Err(()),
                (a, b) => Ok(a.clone().or_else(|| b.clone())),
            }
        }
        let merged = || -> Result<DeviceName, ()> {
            Ok(DeviceName {
                job: both(&self.job, &other.job)?,
                replica: both(&self.replica, &other.replica)?,
                task: both(&self.task, &other.task)?,
                kind: both(&self.kind, &other.kind)?,
                index: both(&self.index, &other.index)?,
            })
        };
        merged().map_err(|()| DeviceConflict(Box::new(self.clone()), Box::new(other.clone())))
    }

    /// Only the parts that name the task.
    #[must_use]
    pub fn task_part(&self) -> DeviceName {
        DeviceName { kind: None, index: None, ..self.clone() }
    }
}

/// `*` leaves the part free.
fn number(text: &str) -> Option<Option<u32>> {
    if text == "*" { Some(None) } else { text.parse().ok().map(Some) }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (&self.kind, self.index) {
            (Some(kind), Some(index)) => write!(f, "/device:{kind}:{index}"),
            (Some(kind), None) => write!(f, "/device:{kind}:*"),
            (None, Some(index)) => write!(f, "/device:*:{index}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DeviceName {
        DeviceName::parse(text).unwrap_or_else(|| panic!("{text} is a name"))
    }

    #[test]
    fn full_partial_and_old_names_are_read() {
        let full = name("/job:worker/replica:0/task:1/device:CPU:0");
        assert!(full.is_full());
        assert_eq!(full.to_string(), "/job:worker/replica:0/task:1/device:CPU:0");
        assert_eq!(name("/job:worker/replica:0/task:1/cpu:0"), full);
        assert_eq!(
            name("/task:1/job:ps"),
            DeviceName { job: Some("ps".into()), task: Some(1), ..Default::default() }
        );
        assert_eq!(name(""), DeviceName::default());
        assert_eq!(name("/device:GPU").to_string(), "/device:GPU:*");
        for bad in ["job:worker", "/job", "/task:x", "/device:C-U:0", "/shelf:3", "/task:99999999999"] {
            assert_eq!(DeviceName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn merging_keeps_what_both_ask_for() {
        let merged = name("/job:ps").merge(&name("/task:1/cpu:0")).unwrap();
        assert!(merged.covers(&name("/job:ps/replica:0/task:1/device:CPU:0")));
        assert!(name("/job:ps").merge(&name("/job:worker")).is_err());
        assert!(!name("/job:ps").covers(&name("/job:worker/replica:0/task:1/device:CPU:0")));
    }
}
