//! The committed code is what the `.proto` files say.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorSet;

mod generate;

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).expect("the directory is readable");
    entries
        .map(|entry| {
            let path = entry.expect("the entry is readable").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
            (name, std::fs::read(&path).expect("the file is readable"))
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
    for (name, content) in &fresh {
        assert!(
            committed[name] == *content,
            "{name} differs from the .proto files: run `cargo run -p ringway-proto --example generate`"
        );
    }
}

#[test]
fn reflection_knows_every_service() {
    let set = FileDescriptorSet::decode(ringway_proto::DESCRIPTORS).expect("descriptors");
    let services: Vec<String> = set
        .file
        .iter()
        .flat_map(|file| file.service.iter().map(|service| format!("{}.{}", file.package(), service.name())))
        .collect();
    for service in ["ringway.v1.Status", "ringway.v1.SessionSetup", "tensorflow.CoordinationService"] {
        assert!(services.iter().any(|known| known == service), "{service} is not among {services:?}");
    }
}
