//! The committed code is what the `.proto` files say.

use std::collections::BTreeMap;
use std::path::Path;

mod generate;

fn files(directory: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).expect("the directory is readable");
    entries
        .map(|entry| {
            let path = entry.expect("the entry is readable").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("the file is text"))
        })
        .collect()
}

#[test]
fn committed_code_is_up_to_date() {
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&fresh).expect("the directory can be made");
    generate::generate(&fresh).expect("the .proto files compile");
    let committed = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated"));
    let fresh = files(&fresh);
    assert!(
        committed.keys().eq(fresh.keys()),
        "files {:?} are committed and {:?} are generated: run `cargo run -p ringway-proto --example generate`",
        committed.keys(),
        fresh.keys()
    );
    for (name, text) in &fresh {
        assert!(
            committed[name] == *text,
            "{name} differs from the .proto files: run `cargo run -p ringway-proto --example generate`"
        );
    }
}
