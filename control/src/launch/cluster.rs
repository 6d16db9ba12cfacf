//! A cluster description: jobs, their tasks, and the address of each; read from JSON and checked whole.
//!
//! Three spellings are understood, all in use: `{"worker": ["a:1", "b:1"]}`, `{"worker": {"0": "a:1", "1": "b:1"}}`,
//! and the ClusterDef message's own, `{"job": [{"name": "worker", "tasks": {"0": "a:1"}}]}`; each also under a
//! `"cluster"` key, as in `TF_CONFIG`.
//!
//! - I1: a name that appears twice is found, which a JSON map would lose.
//! - I2: the tasks of a job are numbered from 0 without a gap, and no two tasks of the cluster share an address.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::settings::HostPort;

/// The most tasks that a cluster may have.
pub const MAX_TASKS: usize = 65_536;
/// The longest description, in bytes: [`MAX_TASKS`] tasks with long names fit.
pub const CLUSTER_LIMIT_BYTES: usize = 16 << 20;

/// Jobs in the order in which they were given, with the addresses of their tasks by index.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Cluster {
    jobs: Vec<(String, Vec<HostPort>)>,
    /// Jobs whose tasks register with the coordination service; all, where none is named.
    coordinated: Vec<String>,
}

/// What is wrong with a cluster description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// Not JSON.
    #[error("not valid JSON: {message}")]
    Json {
        /// What the parser says, with line and column.
        message: String,
    },
    /// Longer than [`CLUSTER_LIMIT_BYTES`].
    #[error("longer than {CLUSTER_LIMIT_BYTES} bytes, which is no description of a cluster")]
    Long,
    /// A name that no task can have: devices are named by it, `/job:worker/task:0`.
    #[error("a job cannot be called {job:?}: begin with a letter, and go on with letters, digits and _")]
    JobName {
        /// The name.
        job: String,
    },
    /// JSON of another shape.
    #[error("{at} is {found}, and should be {expected}")]
    Shape {
        /// Which part.
        at: String,
        /// What it is.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A job is given twice.
    #[error("job {job} is given twice: merge its tasks into one list")]
    DuplicateJob {
        /// Its name.
        job: String,
    },
    /// A task is given twice.
    #[error("task {job}:{index} is given twice: keep one of them")]
    DuplicateTask {
        /// Its job.
        job: String,
        /// Its index.
        index: u32,
    },
    /// The indices of a job have a gap.
    #[error(
        "task {job}:{index} is missing, though the job has a task {job}:{last}: tasks are numbered from 0 without a gap"
    )]
    MissingTask {
        /// The job.
        job: String,
        /// The first index that is missing.
        index: u32,
        /// The largest index there is.
        last: u32,
    },
    /// A job has no task at all.
    #[error("job {job} has no tasks: remove it or give it addresses")]
    EmptyJob {
        /// Its name.
        job: String,
    },
    /// A task's address is not one.
    #[error("the address of {job}:{index}, {given:?}, is not host:port (an IPv6 address goes in brackets)")]
    Address {
        /// The job.
        job: String,
        /// The index.
        index: u32,
        /// The address as given.
        given: String,
    },
    /// Two tasks have one address.
    #[error("{first} and {second} both have the address {address}: every task needs its own")]
    SharedAddress {
        /// The address.
        address: HostPort,
        /// One task.
        first: String,
        /// The other.
        second: String,
    },
    /// More tasks than [`MAX_TASKS`].
    #[error("the cluster has more than {MAX_TASKS} tasks")]
    TooMany,
    /// The task that was asked for is not in the cluster.
    #[error("the cluster has no task {job}:{index}; it has {}", if .known.is_empty() { "none at all" } else { .known.as_str() })]
    NoSuchTask {
        /// The job asked for.
        job: String,
        /// The index asked for.
        index: u32,
        /// What there is.
        known: String,
    },
}

impl Cluster {
    /// Reads and checks a cluster description.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn parse(json: &str) -> Result<Self, ClusterError> {
        if json.len() > CLUSTER_LIMIT_BYTES {
            return Err(ClusterError::Long);
        }
        let node = parse(json)?;
        match &node {
            Node::Object(fields) => match field(fields, "cluster") {
                Some(inner @ Node::Object(_)) => Self::from_node(inner),
                _ => Self::from_node(&node),
            },
            _ => Self::from_node(&node),
        }
    }

    fn from_node(node: &Node) -> Result<Self, ClusterError> {
        let Node::Object(fields) = node else {
            return Err(shape("the cluster", node, "an object of jobs"));
        };
        let mut jobs = Vec::new();
        match field(fields, "job") {
            Some(Node::List(items)) if items.iter().any(|item| matches!(item, Node::Object(_))) => {
                for item in items {
                    jobs.push(cluster_def_job(item)?);
                }
            }
            _ => {
                for (job, tasks) in fields {
                    jobs.push((job.clone(), read_tasks(job, tasks)?));
                }
            }
        }
        let cluster = Cluster { jobs, coordinated: Vec::new() };
        cluster.check()?;
        Ok(cluster)
    }

    /// I2, that no job is given twice (I1), and that names are TensorFlow's.
    fn check(&self) -> Result<(), ClusterError> {
        if self.jobs.iter().map(|(_, tasks)| tasks.len()).sum::<usize>() > MAX_TASKS {
            return Err(ClusterError::TooMany);
        }
        let mut owners = BTreeMap::new();
        for (i, (job, tasks)) in self.jobs.iter().enumerate() {
            let plain = job.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !plain || !job.starts_with(|c: char| c.is_ascii_alphabetic()) {
                return Err(ClusterError::JobName { job: job.clone() });
            }
            if self.jobs[..i].iter().any(|(other, _)| other == job) {
                return Err(ClusterError::DuplicateJob { job: job.clone() });
            }
            for (index, address) in tasks.iter().enumerate() {
                let name = format!("{job}:{index}");
                if let Some(first) = owners.insert(address, name.clone()) {
                    return Err(ClusterError::SharedAddress {
                        address: address.clone(),
                        first,
                        second: name,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The tasks of a job with their addresses, by rising index; none when there is no such job.
    pub fn tasks<'a>(&'a self, job: &str) -> impl Iterator<Item = (u32, &'a HostPort)> + use<'a> {
        let tasks = self.jobs.iter().find(|(name, _)| name == job).map_or(&[][..], |(_, tasks)| &tasks[..]);
        (0u32..).zip(tasks)
    }

    /// All tasks in the order given: job, index, address.
    pub fn all(&self) -> impl Iterator<Item = (&str, u32, &HostPort)> {
        self.jobs
            .iter()
            .flat_map(|(job, tasks)| (0u32..).zip(tasks).map(move |(i, address)| (job.as_str(), i, address)))
    }

    /// The jobs whose tasks register with the coordination service, in the order given, with how many tasks each has.
    pub fn coordinated_sizes(&self) -> Vec<(String, u32)> {
        let all = self.job_sizes().into_iter();
        all.filter(|(job, _)| self.coordinated.is_empty() || self.coordinated.contains(job)).collect()
    }

    /// Says which jobs register with the coordination service; all do unless this is called.
    ///
    /// # Errors
    /// When there is no such job.
    pub fn coordinate(&mut self, jobs: &[String]) -> Result<(), ClusterError> {
        for job in jobs {
            self.address(job, 0)?;
        }
        self.coordinated = jobs.to_vec();
        Ok(())
    }

    /// The jobs in the order given, with how many tasks each has.
    pub fn job_sizes(&self) -> Vec<(String, u32)> {
        let size = |tasks: &Vec<HostPort>| u32::try_from(tasks.len()).expect("at most MAX_TASKS");
        self.jobs.iter().map(|(job, tasks)| (job.clone(), size(tasks))).collect()
    }

    /// The address of one task.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchTask`], with what there is.
    pub fn address(&self, job: &str, index: u32) -> Result<&HostPort, ClusterError> {
        self.tasks(job)
            .find(|(at, _)| *at == index)
            .map(|(_, address)| address)
            .ok_or_else(|| ClusterError::NoSuchTask { job: job.to_owned(), index, known: self.summary() })
    }

    /// The cluster in one line, such as `worker:0=a:1 worker:1=b:1 ps:0=c:1`.
    pub fn summary(&self) -> String {
        self.all()
            .map(|(job, index, address)| format!("{job}:{index}={address}"))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// The parts of `TF_CONFIG` that say who this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TfConfig {
    pub(super) cluster: Cluster,
    pub(super) task: Option<(String, u32)>,
}

impl TfConfig {
    /// Reads `{"cluster": {...}, "task": {"type": "worker", "index": 0}}`; the index may be text, as in TensorFlow.
    pub(super) fn parse(json: &str) -> Result<Self, ClusterError> {
        let node = parse(json)?;
        let Node::Object(fields) = &node else {
            return Err(shape("the whole", &node, "an object with cluster and task"));
        };
        let cluster = field(fields, "cluster").map_or(Ok(Cluster::default()), Cluster::from_node)?;
        let task = match field(fields, "task") {
            None => None,
            Some(Node::Object(task)) => {
                let job = match field(task, "type") {
                    Some(Node::Text(job)) => job.clone(),
                    other => {
                        return Err(shape("task.type", other.unwrap_or(&Node::Null), "the name of a job"));
                    }
                };
                let given = field(task, "index").unwrap_or(&Node::Null);
                let index = index(given).ok_or_else(|| shape("task.index", given, "a task number from 0"))?;
                Some((job, index))
            }
            Some(other) => return Err(shape("task", other, "an object with type and index")),
        };
        Ok(TfConfig { cluster, task })
    }
}

/// One `{"name": ..., "tasks": {...}}` of a ClusterDef.
fn cluster_def_job(node: &Node) -> Result<(String, Vec<HostPort>), ClusterError> {
    let expected = "an object with name and tasks";
    let Node::Object(fields) = node else { return Err(shape("an item of job", node, expected)) };
    let Some(Node::Text(name)) = field(fields, "name") else {
        return Err(shape(
            "the name of an item of job",
            field(fields, "name").unwrap_or(&Node::Null),
            "text",
        ));
    };
    let tasks = field(fields, "tasks").unwrap_or(&Node::Null);
    Ok((name.clone(), read_tasks(name, tasks)?))
}

/// The tasks of a job: a list, or a map from index to address.
fn read_tasks(job: &str, node: &Node) -> Result<Vec<HostPort>, ClusterError> {
    let mut by_index = BTreeMap::new();
    let mut add = |index: u32, node: &Node| {
        let Node::Text(text) = node else {
            return Err(shape(&format!("{job}:{index}"), node, "an address as text, host:port"));
        };
        let address = HostPort::parse(text).ok_or_else(|| ClusterError::Address {
            job: job.to_owned(),
            index,
            given: text.clone(),
        })?;
        match by_index.insert(index, address) {
            Some(_) => Err(ClusterError::DuplicateTask { job: job.to_owned(), index }),
            None => Ok(()),
        }
    };
    match node {
        Node::List(items) => (0u32..).zip(items).try_for_each(|(index, item)| add(index, item))?,
        Node::Object(fields) => {
            for (key, item) in fields {
                let key = Node::Text(key.clone());
                let index = index(&key).ok_or_else(|| {
                    shape(&format!("a key of the tasks of {job}"), &key, "a task number from 0")
                })?;
                add(index, item)?;
            }
        }
        other => {
            return Err(shape(
                &format!("job {job}"),
                other,
                "a list of addresses or a map from index to address",
            ));
        }
    }
    let Some(last) = by_index.keys().next_back().copied() else {
        return Err(ClusterError::EmptyJob { job: job.to_owned() });
    };
    match (0..=last).zip(by_index.keys()).find(|(expected, index)| expected != *index) {
        Some((index, _)) => Err(ClusterError::MissingTask { job: job.to_owned(), index, last }),
        None => Ok(by_index.into_values().collect()),
    }
}

fn index(node: &Node) -> Option<u32> {
    match node {
        Node::Number(number) => u32::try_from(*number).ok(),
        Node::Text(text) if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

fn shape(at: &str, node: &Node, expected: &'static str) -> ClusterError {
    ClusterError::Shape { at: at.to_owned(), found: node.kind(), expected }
}

fn parse(json: &str) -> Result<Node, ClusterError> {
    serde_json::from_str(json).map_err(|error| ClusterError::Json { message: error.to_string() })
}

fn field<'a>(fields: &'a [(String, Node)], name: &str) -> Option<&'a Node> {
    fields.iter().find(|(key, _)| key == name).map(|(_, node)| node)
}

/// JSON that keeps the order of its objects and names that appear twice (I1).
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Null,
    Number(u64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
    /// A boolean, or a number that is no whole number from 0: never allowed here.
    Other,
}

impl Node {
    fn kind(&self) -> &'static str {
        match self {
            Node::Null => "missing",
            Node::Number(_) => "a number",
            Node::Text(_) => "text",
            Node::List(_) => "a list",
            Node::Object(_) => "an object",
            Node::Other => "a value of another type",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = map.next_entry()? {
            fields.push(entry);
        }
        Ok(Node::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(json: &str) -> String {
        Cluster::parse(json).unwrap().summary()
    }

    fn error(json: &str) -> String {
        Cluster::parse(json).unwrap_err().to_string()
    }

    #[test]
    fn the_spellings_mean_the_same() {
        let expected = "worker:0=a:1 worker:1=b:1 ps:0=c:1";
        assert_eq!(summary(r#"{"worker": ["a:1", "b:1"], "ps": ["c:1"]}"#), expected);
        assert_eq!(summary(r#"{"worker": {"1": "b:1", "0": "a:1"}, "ps": ["c:1"]}"#), expected);
        assert_eq!(summary(r#"{"cluster": {"worker": ["a:1", "b:1"], "ps": {"0": "c:1"}}}"#), expected);
        assert_eq!(
            summary(
                r#"{"job": [{"name": "worker", "tasks": {"0": "a:1", "1": "b:1"}}, {"name": "ps", "tasks": {"0": "c:1"}}]}"#
            ),
            expected
        );
        assert_eq!(summary(r#"{"job": ["a:1"]}"#), "job:0=a:1", "a job may be called job");
    }

    #[test]
    fn tasks_are_found_by_name() {
        let cluster = Cluster::parse(r#"{"worker": ["a:1", "[fd00::2]:1"]}"#).unwrap();
        assert_eq!(cluster.address("worker", 1).unwrap().to_string(), "[fd00::2]:1");
        assert_eq!(
            cluster.address("ps", 0).unwrap_err().to_string(),
            "the cluster has no task ps:0; it has worker:0=a:1 worker:1=[fd00::2]:1"
        );
    }

    /// I1 and I2.
    #[test]
    fn unsound_clusters_are_refused() {
        assert!(error(r#"{"worker": "#).starts_with("not valid JSON: "));
        assert_eq!(error("[]"), "the cluster is a list, and should be an object of jobs");
        assert_eq!(
            error(r#"{"worker": ["a:1"], "worker": ["b:1"]}"#),
            "job worker is given twice: merge its tasks into one list"
        );
        assert_eq!(
            error(r#"{"worker": {"0": "a:1", "0": "b:1"}}"#),
            "task worker:0 is given twice: keep one of them"
        );
        assert_eq!(
            error(r#"{"worker": {"0": "a:1", "2": "b:1"}}"#),
            "task worker:1 is missing, though the job has a task worker:2: tasks are numbered from 0 without a gap"
        );
        assert_eq!(
            error(r#"{"worker": ["a:1"], "ps": ["a:1"]}"#),
            "worker:0 and ps:0 both have the address a:1: every task needs its own"
        );
        assert_eq!(error(r#"{"worker": []}"#), "job worker has no tasks: remove it or give it addresses");
        assert!(error(r#"{"worker": ["a"]}"#).contains("worker:0, \"a\", is not host:port"));
        assert!(error(r#"{"worker": [1]}"#).contains("worker:0 is a number"));
        assert!(error(r#"{"worker": {"x": "a:1"}}"#).contains("a task number from 0"));
        assert!(error(r#"{"worker": {"-1": "a:1"}}"#).contains("a task number from 0"));
        assert!(error(r#"{"worker": true}"#).contains("a value of another type"));
        assert!(error(r#"{"job": [{"tasks": {}}]}"#).contains("the name of an item of job is missing"));
        for name in ["wo/rker", "", "1st", "a-b", "w:0", "über"] {
            let said = error(&format!(r#"{{"{name}": ["a:1"]}}"#));
            assert!(said.starts_with(&format!("a job cannot be called {name:?}")), "{said}");
        }
        let none = Cluster::parse("{}").unwrap().address("worker", 0).unwrap_err().to_string();
        assert_eq!(none, "the cluster has no task worker:0; it has none at all");
        assert!(error(&" ".repeat(CLUSTER_LIMIT_BYTES + 1)).starts_with("longer than"));
        let deep = "[".repeat(100_000);
        assert!(error(&deep).starts_with("not valid JSON"), "deep nesting is refused, not a crash");
    }

    #[test]
    fn a_sparse_index_costs_no_memory() {
        assert!(error(r#"{"worker": {"4294967295": "a:1"}}"#).contains("worker:0 is missing"));
    }
}
