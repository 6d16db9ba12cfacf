//! What outlives steps: resources by container, kind and name.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ringway_proto::tensorflow::error::Code;

use super::contract::OpError;
use crate::tensor::{ResourceHandle, Tensor};

/// Resources that one device may hold; past that they are a leak, or an attack.
pub const RESOURCES_LIMIT: usize = 1 << 20;
/// The name by which a client asks for a resource that belongs to its handles alone.
pub const ANONYMOUS: &str = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";

/// A kind of resource.
pub trait Resource: Any + Send + Sync {
    /// Its name in handles and errors.
    const KIND: &'static str;
}

type Shared = Arc<dyn Any + Send + Sync>;

enum Kept {
    /// Until it is removed.
    Strong(Shared),
    /// As long as a handle of it lives.
    Weak(Weak<dyn Any + Send + Sync>),
}

impl Kept {
    fn get(&self) -> Option<Shared> {
        match self {
            Kept::Strong(resource) => Some(Arc::clone(resource)),
            Kept::Weak(resource) => resource.upgrade(),
        }
    }
}

type Container = HashMap<(TypeId, String), Kept>;

/// The resources of one device.
pub struct Resources {
    default_container: String,
    containers: Mutex<HashMap<String, Container>>,
    anonymous: AtomicU64,
}

impl Resources {
    /// None yet. `default_container` is where those are that name no container: the job's name in a cluster.
    #[must_use]
    pub fn new(default_container: &str) -> Resources {
        Resources {
            default_container: default_container.to_owned(),
            containers: Mutex::default(),
            anonymous: AtomicU64::new(0),
        }
    }

    /// The container that this one means: itself, or the default when it is empty.
    #[must_use]
    pub fn container<'a>(&'a self, name: &'a str) -> &'a str {
        if name.is_empty() { &self.default_container } else { name }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Container>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The resource of this kind and name.
    #[must_use]
    pub fn find<R: Resource>(&self, container: &str, name: &str) -> Option<Arc<R>> {
        let containers = self.lock();
        let kept = containers.get(self.container(container))?.get(&(TypeId::of::<R>(), name.to_owned()))?;
        kept.get()?.downcast().ok()
    }

    /// The resource of this kind and name, which `make` makes if it is not there. `make` must not ask for resources.
    ///
    /// # Errors
    /// What `make` says; `RESOURCE_EXHAUSTED` past [`RESOURCES_LIMIT`].
    pub fn find_or_make<R: Resource>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<R, OpError>,
    ) -> Result<Arc<R>, OpError> {
        let mut containers = self.lock();
        let count: usize = containers.values().map(HashMap::len).sum();
        let container = containers.entry(self.container(container).to_owned()).or_default();
        let key = (TypeId::of::<R>(), name.to_owned());
        if let Some(found) = container.get(&key).and_then(Kept::get).and_then(|found| found.downcast().ok()) {
            return Ok(found);
        }
        if count >= RESOURCES_LIMIT {
            let message =
                format!("there are {count} resources on this device, the most it may hold: remove some");
            return Err(OpError::new(Code::ResourceExhausted, message));
        }
        let made = Arc::new(make()?);
        container.insert(key, Kept::Strong(made.clone()));
        Ok(made)
    }

    /// Makes a resource that lives as long as the handle that is returned, its copies, and nobody else's wish.
    pub fn make_anonymous<R: Resource>(&self, device: &str, make: impl FnOnce(&str) -> R) -> ResourceHandle {
        let number = self.anonymous.fetch_add(1, Ordering::Relaxed);
        let name = format!("_Anonymous{number}");
        let made: Arc<R> = Arc::new(make(&name));
        let keep: Shared = made;
        let mut containers = self.lock();
        let container = containers.entry(self.default_container.clone()).or_default();
        // Those that died leave their names behind; they are swept now and then.
        if number.is_multiple_of(1024) {
            container.retain(|_, kept| kept.get().is_some());
        }
        container.insert((TypeId::of::<R>(), name.clone()), Kept::Weak(Arc::downgrade(&keep)));
        ResourceHandle {
            device: device.to_owned(),
            container: self.default_container.clone(),
            name,
            type_name: R::KIND.to_owned(),
            keep: Some(keep),
            ..Default::default()
        }
    }

    /// The resource that the handle in `tensor` names.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when it is no handle, `FAILED_PRECONDITION` (as TensorFlow has it for variables) when there is
    /// no such resource.
    pub fn resolve<R: Resource>(&self, tensor: &Tensor) -> Result<Arc<R>, OpError> {
        let handle = one_handle(tensor)?;
        self.find(&handle.container, &handle.name).ok_or_else(|| {
            let (kind, name) = (R::KIND, &handle.name);
            let container = self.container(&handle.container);
            OpError::precondition(format!(
                "Could not find variable {name}. This could mean that the variable has been deleted. In TF1, it can also \
                 mean the variable is uninitialized. Debug info: container={container}, status error message=Resource \
                 {container}/{name}/{kind} does not exist. (Could not find resource: {container}/{name})"
            ))
        })
    }

    /// Takes a resource away, of whatever kind. Whether it was there.
    pub fn remove(&self, container: &str, name: &str) -> bool {
        let mut containers = self.lock();
        let Some(container) = containers.get_mut(self.container(container)) else { return false };
        let before = container.len();
        container.retain(|(_, named), kept| named != name || kept.get().is_none());
        container.len() < before
    }

    /// Takes away all of these containers; of the default one when there are none.
    pub fn clear(&self, names: &[String]) {
        let mut containers = self.lock();
        if names.is_empty() {
            containers.remove(&self.default_container);
        }
        for name in names {
            containers.remove(self.container(name));
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().values().flat_map(HashMap::values).filter(|kept| kept.get().is_some()).count()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The one handle in a tensor.
///
/// # Errors
/// `INVALID_ARGUMENT` when it holds none, or several.
pub fn one_handle(tensor: &Tensor) -> Result<&ResourceHandle, OpError> {
    match tensor.handles()? {
        [handle] => Ok(handle),
        all => Err(OpError::invalid(format!("expected one resource handle and got {}", all.len()))),
    }
}
