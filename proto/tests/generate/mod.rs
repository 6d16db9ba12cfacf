//! How the code under `src/generated` is made from the `.proto` files. Used by the example that writes it and by
//! the test that compares it.

use std::error::Error;
use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorSet;

/// The files that are compiled, relative to `proto/proto`.
const PROTO_FILES: [&str; 11] = [
    "tensorflow/coordination_service.proto",
    "tensorflow/master_service.proto",
    "tensorflow/worker_service.proto",
    "tensorflow/eager_service.proto",
    "xla/coordination_service.proto",
    "ringway/v1/data_plane.proto",
    "ringway/v1/session_setup.proto",
    "ringway/v1/status.proto",
    "ringway/v1/coordinator_state.proto",
    "ringway/rounds/v1/rounds.proto",
    "etcd/rpc.proto",
];

/// Fields that hold the bytes of tensors: shared with the buffer that they came in, not copied out of it.
const SHARED_BYTES: [&str; 2] = [".tensorflow.TensorProto.tensor_content", ".tensorflow.RecvBufRespExtra"];

/// Messages that are also written as JSON: flight records on disk, and `ringway status --json`.
const AS_JSON: [&str; 14] = [
    "Overview",
    "TaskView",
    "TaskName",
    "WaitAtService",
    "GroupAtService",
    "Silent",
    "RankReport",
    "GroupReport",
    "CallRecord",
    "Wait",
    "Awaited",
    "PeerReport",
    "TotalReport",
    "Happening",
];

/// What gRPC reflection answers from: the descriptors of all files, without their comments.
pub(crate) const DESCRIPTORS: &str = "descriptors.bin";

/// Compiles the `.proto` files of this package and writes one Rust file per protobuf package into `out`.
///
/// protox reads the files in place of protoc, so that nothing has to be installed.
pub(crate) fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let descriptors = protox::compile(PROTO_FILES, [root])?;
    std::fs::write(out.join(DESCRIPTORS), without_comments(&descriptors).encode_to_vec())?;
    let builder = tonic_prost_build::configure().out_dir(out).emit_rerun_if_changed(false);
    let builder = SHARED_BYTES.iter().fold(builder, |builder, field| builder.bytes(field));
    let builder = AS_JSON.iter().fold(builder, |builder, message| {
        let derive = "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]";
        builder.message_attribute(format!(".ringway.v1.{message}"), derive)
    });
    builder.compile_fds(descriptors)?;
    Ok(())
}

fn without_comments(descriptors: &FileDescriptorSet) -> FileDescriptorSet {
    let mut bare = descriptors.clone();
    // Services of others, which we call and do not offer.
    bare.file.retain(|file| file.package() != "etcdserverpb");
    bare.file.iter_mut().for_each(|file| file.source_code_info = None);
    bare
}
