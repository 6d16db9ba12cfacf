//! Without a device: loading, errors in words, layouts.

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
