//! The devices that a session runs on.

use std::sync::Arc;

use ringway_proto::tensorflow::DeviceAttributes;

use crate::core::graph::DeviceName;

/// A device of a session.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name, with all parts.
    pub name: DeviceName,
    /// The same, written out.
    pub full: Arc<str>,
    /// Place of its task in [`Devices::tasks`].
    pub task: usize,
    /// As its worker describes it.
    pub attributes: DeviceAttributes,
}

impl Device {
    /// This life of it.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.attributes.incarnation
    }
}

/// All devices of a session, in the order of its tasks.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    tasks: Vec<Arc<str>>,
    all: Vec<Device>,
    default: usize,
}

impl Devices {
    /// The devices of `tasks`: for each its name, `/job:j/replica:0/task:i`, and what its worker says of its devices.
    /// Names that cannot be read are left out. Nodes that nothing else places go to the first CPU of `default`, a place
    /// in `tasks`.
    #[must_use]
    pub fn new(tasks: Vec<(String, Vec<DeviceAttributes>)>, default: usize) -> Devices {
        let mut devices = Devices::default();
        for (task, (name, attributes)) in tasks.into_iter().enumerate() {
            devices.tasks.push(name.into());
            for attributes in attributes {
                if let Some(name) = DeviceName::parse(&attributes.name).filter(DeviceName::is_full) {
                    let full = name.to_string().into();
                    devices.all.push(Device { name, full, task, attributes });
                }
            }
        }
        let of_task = |device: &Device| device.task == default && device.name.kind.as_deref() == Some("CPU");
        devices.default = devices.all.iter().position(of_task).unwrap_or(0);
        devices
    }

    /// Names of the tasks.
    #[must_use]
    pub fn tasks(&self) -> &[Arc<str>] {
        &self.tasks
    }

    /// All devices.
    #[must_use]
    pub fn all(&self) -> &[Device] {
        &self.all
    }

    /// The device at a place in [`Devices::all`].
    ///
    /// # Panics
    /// When the place is not one of this list.
    #[must_use]
    pub fn get(&self, at: usize) -> &Device {
        &self.all[at]
    }

    /// Where nodes go that nothing else places.
    #[must_use]
    pub fn default_device(&self) -> usize {
        self.default
    }

    /// Places of those that are what `asked` asks for.
    pub fn matching<'a>(&'a self, asked: &'a DeviceName) -> impl Iterator<Item = usize> + 'a {
        self.all.iter().enumerate().filter(|(_, device)| asked.covers(&device.name)).map(|(at, _)| at)
    }

    /// Names of all, for messages.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.all.iter().map(|device| device.full.to_string()).collect()
    }
}
