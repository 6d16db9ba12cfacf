//! What can be shown without a device is here; what needs one is in `device`, over the ends that `rig` makes.

mod device;
pub(in crate::rdma) mod double;
mod rig;

use super::context::open_error;
use super::*;

#[test]
fn a_library_that_is_not_there_is_named_with_what_to_install() {
    let error = Library::open("libibverbs-of-nowhere.so.1").expect_err("no such file");
    let text = error.to_string();
    for part in ["libibverbs-of-nowhere.so.1", "cannot open shared object file", "libibverbs1", "rdma-core"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_library_of_another_kind_is_refused_by_the_function_it_lacks() {
    let error = Library::open("libc.so.6").expect_err("libc has no verbs");
    assert_eq!(
        error,
        LoadError::Incomplete { file: "libc.so.6".to_owned(), symbol: "ibv_get_device_list" },
        "{error}"
    );
}

#[test]
fn the_list_of_devices_is_the_kernels() {
    let library = match Library::load() {
        Ok(library) => library,
        Err(error) => return rig::skip(&error.to_string()),
    };
    let mut listed = library.device_names().expect("a list, if an empty one");
    // A kernel without RDMA has no such folder.
    let kernels = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let mut kernels: Vec<String> =
        kernels.map(|entry| entry.expect("an entry").file_name().into_string().expect("plain")).collect();
    listed.sort();
    kernels.sort();
    // What has no device file here, as in most containers, is not listed; opening it says so.
    for name in kernels.iter().filter(|name| !listed.contains(name)) {
        let error = Context::open(&library, name).expect_err("not listed");
        let said = matches!(error, VerbsError::NoDeviceFile { .. } | VerbsError::NoDriver { .. });
        assert!(said && error.to_string().contains(name), "{error}");
    }
    kernels.retain(|name| listed.contains(name));
    assert_eq!(listed, kernels);
    let same = Library::load().expect("as before");
    assert!(std::sync::Arc::ptr_eq(&library, &same), "one library for the process");
    let error = Context::open(&library, "no-such-device").expect_err("no such device");
    assert_eq!(error.to_string().contains("this machine has none"), listed.is_empty(), "{error}");
    let VerbsError::NoSuchDevice { device, mut known } = error else { panic!("{error}") };
    known.sort();
    assert_eq!((device.as_str(), known), ("no-such-device", listed));
}

#[test]
fn a_device_that_cannot_be_opened_says_what_to_do() {
    let missing =
        open_error("mlx5_0".to_owned(), "/dev/infiniband/uverbs-of-nowhere".to_owned(), libc::ENODEV);
    assert!(matches!(missing, VerbsError::NoDeviceFile { .. }), "{missing}");
    assert!(missing.to_string().contains("--device=/dev/infiniband/uverbs-of-nowhere"), "{missing}");
    let (device, path) = ("mlx5_0".to_owned(), "/dev/infiniband/uverbs0".to_owned());
    let denied = VerbsError::OpenDenied { device, path, errno: libc::EACCES };
    assert!(denied.to_string().contains("read and write access"), "{denied}");
    let gone = open_error("mlx5_0".to_owned(), "/dev/null".to_owned(), libc::ENODEV);
    assert_eq!(gone.errno(), Some(libc::ENODEV), "{gone}");
    assert!(gone.to_string().contains("dmesg"), "{gone}");
}

#[test]
fn memory_that_cannot_be_pinned_is_told_with_the_limit() {
    let refused = |memlock_limit_bytes| {
        let (device, errno) = ("mlx5_0".to_owned(), libc::ENOMEM);
        VerbsError::PinRefused { device, len_bytes: 1 << 20, errno, memlock_limit_bytes }.to_string()
    };
    let limited = refused(Some(65_536));
    assert!(limited.contains("65536 bytes") && limited.contains("ulimit -l unlimited"), "{limited}");
    let unlimited = refused(None);
    assert!(unlimited.contains("out of it") && !unlimited.contains("ulimit"), "{unlimited}");
}

#[test]
fn every_status_has_its_own_words_and_number() {
    let all: Vec<CompletionStatus> = (0..32).map(CompletionStatus::of).collect();
    for (number, status) in all.iter().enumerate() {
        assert_eq!(status.number(), number as u32, "{status:?}");
        assert!(status.to_string().ends_with(&format!("(status {number})")), "{status}");
    }
    let mut words: Vec<String> = all.iter().map(ToString::to_string).collect();
    words.sort();
    words.dedup();
    assert_eq!(words.len(), 32);
    assert_eq!(all[10], CompletionStatus::RemoteAccess);
    assert_eq!(all[12], CompletionStatus::RetryExceeded);
}

#[test]
fn a_full_queue_and_a_wrong_request_are_told_apart() {
    let refused = |errno| PostError { call: "ibv_post_send", accepted: 3, errno };
    assert!(refused(libc::ENOMEM).is_full() && !refused(libc::EINVAL).is_full());
    assert!(refused(libc::ENOMEM).to_string().contains("poll completions"));
    assert!(refused(libc::EINVAL).to_string().contains("not connected"));
}
