//! The state file as a store: what was committed is there for the next process. Invariants are those of `store::file`.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringway_control::store::file::{FileStore, Sync};
use ringway_control::store::{Claim, Store, StoreError, Term, Write};

/// A file of one test, removed with what stands beside it.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let name = format!("{name}-{}.state", std::process::id());
        File(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    fn bytes(&self) -> u64 {
        std::fs::metadata(&self.0).unwrap().len()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for ending in ["", ".lock", ".new"] {
            let _ = std::fs::remove_file(format!("{}{ending}", self.0.display()));
        }
    }
}

fn put(key: &str, value: &[u8]) -> Write {
    Write { key: key.to_owned(), value: Some(Arc::new(value.to_vec())) }
}

fn remove(key: &str) -> Write {
    Write { key: key.to_owned(), value: None }
}

fn run<T>(call: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(call)
}

/// Leads, and commits these batches.
fn commit(store: &FileStore, batches: Vec<Vec<Write>>) -> Result<(), StoreError> {
    run(async {
        let (lease, _) = store.grant().await?;
        let Claim::Won { revision } = store.claim(lease, "me").await? else { panic!("nobody else is there") };
        store.commit(Term { revision, lease }, batches).await
    })
}

fn load(store: &FileStore) -> Vec<(String, Vec<u8>)> {
    let entries = run(store.load()).unwrap();
    entries.into_iter().map(|(key, value)| (key, value.to_vec())).collect()
}

fn entry(key: &str, value: &[u8]) -> (String, Vec<u8>) {
    (key.to_owned(), value.to_vec())
}

/// F1 and F2.
#[test]
fn what_was_committed_is_there_for_the_next_who_opens_it() {
    let file = File::new("kept");
    for sync in [Sync::Every, Sync::System] {
        let store = open_as(&file, sync);
        assert!(matches!(FileStore::open(&file.0, sync), Err(StoreError::InUse { .. })));
        commit(&store, vec![vec![put("a", b"1"), put("b", b"2")], vec![remove("b"), put("c", b"")]]).unwrap();
        commit(&store, vec![vec![put("a", b"3")]]).unwrap();
    }
    let store = open_when_free(&file);
    assert_eq!(load(&store), [entry("a", b"3"), entry("c", b"")]);
    assert!(matches!(run(store.load()), Err(StoreError::Closed)), "it is handed out once");
    let mode = std::fs::metadata(&file.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "it holds secrets");
}

/// The thread of the one before gives the file back after its last handle is gone.
fn open_when_free(file: &File) -> FileStore {
    open_as(file, Sync::System)
}

fn open_as(file: &File, sync: Sync) -> FileStore {
    loop {
        match FileStore::open(&file.0, sync) {
            Err(StoreError::InUse { .. }) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

/// F3: the file is written anew when it has grown past what it is worth.
#[test]
fn a_file_that_has_grown_is_written_anew() {
    let file = File::new("grown");
    let store = FileStore::open(&file.0, Sync::System).unwrap();
    let large = vec![7; 1 << 20];
    for round in 0..32 {
        commit(&store, vec![vec![put("same", &large), put(&format!("k/{round}"), b"x")]]).unwrap();
    }
    drop(store);
    assert!(file.bytes() < 8 << 20, "{} bytes for 1 MiB", file.bytes());
    let store = open_when_free(&file);
    let found = load(&store);
    assert_eq!((found.len(), &found[32]), (33, &entry("same", &large)));
}

/// F3: where there is no room for another file, the old one goes on.
#[test]
fn a_file_that_cannot_be_written_anew_goes_on() {
    let file = File::new("stuck");
    let beside = format!("{}.new", file.0.display());
    std::fs::create_dir(&beside).unwrap();
    let store = FileStore::open(&file.0, Sync::System).unwrap();
    let large = vec![7; 1 << 20];
    for round in 0..12u8 {
        commit(&store, vec![vec![put("same", &large), put("round", &[round])]]).unwrap();
    }
    std::fs::remove_dir(&beside).unwrap();
    assert!(file.bytes() > 12 << 20);
    drop(store);
    let store = open_when_free(&file);
    assert_eq!(load(&store), [entry("round", &[11]), entry("same", &large)]);
    commit(&store, vec![vec![put("round", b"x")]]).unwrap();
    assert!(file.bytes() < 2 << 20, "{} bytes for 1 MiB", file.bytes());
}

/// F3: a last record that was not written whole counts for nothing, and what is written after it is read again.
#[test]
fn a_file_that_was_cut_off_goes_on_from_what_is_whole() {
    let file = File::new("torn");
    commit(&FileStore::open(&file.0, Sync::System).unwrap(), vec![vec![put("a", b"1")]]).unwrap();
    drop(open_when_free(&file));
    let whole = file.bytes();
    let store = open_when_free(&file);
    commit(&store, vec![vec![put("a", b"2")]]).unwrap();
    drop(store);
    drop(open_when_free(&file));
    for cut in [whole + 1, whole + 13, file.bytes() - 1] {
        let half = OpenOptions::new().write(true).open(&file.0).unwrap();
        half.set_len(cut).unwrap();
        let store = open_when_free(&file);
        assert_eq!((load(&store), file.bytes()), (vec![entry("a", b"1")], whole), "cut at {cut}");
        commit(&store, vec![vec![put("a", b"2")]]).unwrap();
        drop(store);
    }
    assert_eq!(load(&open_when_free(&file)), [entry("a", b"2")]);
}

/// Why the file cannot be opened, once nobody has it.
fn refused(file: &File) -> StoreError {
    loop {
        match FileStore::open(&file.0, Sync::System) {
            Err(StoreError::InUse { .. }) => std::thread::yield_now(),
            other => return other.unwrap_err(),
        }
    }
}

#[test]
fn damage_and_other_files_are_refused_in_words() {
    let file = File::new("damaged");
    let store = FileStore::open(&file.0, Sync::System).unwrap();
    commit(&store, vec![vec![put("a", b"1")]]).unwrap();
    commit(&store, vec![vec![put("b", b"2")]]).unwrap();
    drop(store);
    drop(open_when_free(&file));
    let mut bytes = OpenOptions::new().write(true).open(&file.0).unwrap();
    bytes.seek(SeekFrom::Start(8 + 12 + 1)).unwrap();
    bytes.write_all(b"\xff").unwrap();
    let error = refused(&file);
    assert!(error.to_string().contains("damaged at byte 8 ("), "{error}");
    std::fs::write(&file.0, "something else").unwrap();
    let error = refused(&file);
    assert!(error.to_string().contains("is no state file"), "{error}");
    assert_eq!(std::fs::read(&file.0).unwrap(), b"something else");
}
