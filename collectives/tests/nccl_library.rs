//! The real NCCL, without a GPU: versions, unique ids, errors. tests/gpu/fetch-nccl.sh fetches it; without it, and without
//! one that the dynamic loader finds, these tests say SKIPPED.
#![cfg(feature = "nccl")]

use ringway_collectives::nccl::{Library, Survey, Unavailable, UniqueId, Version};
use std::path::PathBuf;
use std::sync::Arc;

/// Where fetch-nccl.sh keeps it.
fn cached() -> Option<String> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = folder("NCCL_CACHE").or_else(|| {
        let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
        cache.map(|cache| cache.join("ringway/nccl"))
    });
    let file = cache?.join("libnccl.so.2");
    file.is_file().then(|| file.to_str().expect("a plain path").to_owned())
}

fn nccl() -> Option<Arc<Library>> {
    match Library::load(cached().as_deref()) {
        Ok(library) => Some(library),
        Err(Unavailable::NoNccl { reason }) => {
            eprintln!("SKIPPED: no NCCL here ({reason}): run tests/gpu/fetch-nccl.sh");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn it_tells_its_version() {
    let Some(library) = nccl() else { return };
    assert!(library.version() >= Version::OLDEST_NCCL && library.version().major < 10, "{library:?}");
    let survey = Survey::this_host(Some(library.file()));
    assert_eq!(survey.nccl.unwrap().version, library.version());
}

#[test]
fn unique_ids_are_unique_and_travel_as_bytes() {
    let Some(library) = nccl() else { return };
    let (a, b) = (library.unique_id().unwrap(), library.unique_id().unwrap());
    assert!(a != b, "two ids are one");
    assert_eq!(UniqueId::from_bytes(&a.bytes()), Some(a));
}
