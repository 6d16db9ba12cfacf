//! Every decoder of bytes that come from outside, on mutations of what it should read: none panics, none asks for absurd
//! memory, whatever it is given.
//!
//! Each target runs some rounds in the test command; `FUZZ_SECONDS=600 cargo test --release -p ringway-control --test fuzz`
//! runs each for that long. A failure prints the round's seed; `FUZZ_SEED=n` begins with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use prost::Message as _;
use ringway_control::core::coordination::errors::{Code, TaskError};
use ringway_control::core::coordination::preemption::parse_time;
use ringway_control::core::coordination::request::{
    BarrierCall, CallId, Effect, Event, Join, Process, ReplyTo, Request,
};
use ringway_control::core::coordination::{Coordinator, CoordinatorConfig};
use ringway_control::core::graph::{DeviceName, Graph};
use ringway_control::core::machine::Machine;
use ringway_control::core::time::Time;
use ringway_control::launch::cluster::Cluster;
use ringway_control::launch::{Explicit, Fabric, Here, Launch, Vars};
use ringway_control::runtime::rendezvous::TASK_TYPE_URL;
use ringway_control::settings::table::TABLE;
use ringway_control::settings::{HostPort, Settings};
use ringway_control::store::etcd::EtcdAddress;
use ringway_control::store::file::{FileStore, Sync};
use ringway_control::store::{Claim, Store, Term, Write};
use ringway_control::tensor::Tensor;
use ringway_control::window::Heading;
use ringway_dataplane::fabric::route::{Offer, Offers, Withheld, read_offers, write_offers};
use ringway_dataplane::rdma::choice::offer::RdmaOffer;
use ringway_dataplane::rdma::handshake::{Answer, Hello};
use ringway_dataplane::rendezvous::Key;
use ringway_dataplane::rendezvous::wire::{Assembly, Message, notes};
use ringway_dataplane::transport::matching::{Frame, Kind};
use ringway_dataplane::transport::seed::Seeded;
use ringway_dataplane::transport::{self, Address, Keyring, Peer, Transport};
use ringway_dataplane::uring::wire::{GREETING_BYTES, Greeting, HEADER_BYTES, Identity};
use ringway_dataplane::uring::{Bind, Config, TcpTransport};
use ringway_dataplane::{rdma, uring};
use ringway_proto::ringway::v1::{DataPlaneTask, StoredBatch, stored_batch};
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::tensor_shape_proto::Dim;
use ringway_proto::tensorflow::{AttrValue, DataType, GraphDef, NodeDef, TensorProto, TensorShapeProto};
use ringway_topology::model::order::Site;
use ringway_topology::{HostId, Incarnation, TaskId};

/// Rounds of a target without `FUZZ_SECONDS`.
const ROUNDS: u64 = 4_000;
/// Numbers that lengths and counts are wrong by.
const ODD: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
/// Elements that a tensor of one message may be spread to here: what memory is found for takes long.
const SPREAD_ELEMENTS: i64 = 1 << 20;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A sample with some of its bytes changed, moved, left out, or put in.
fn mutated(random: &mut Seeded, samples: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = samples[random.below(samples.len() as u64) as usize].clone();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 => {
                let odd = ODD[random.below(ODD.len() as u64) as usize].to_le_bytes();
                let width = 1 << random.below(4);
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&odd[..end - at]);
            }
            3 => {
                let other = &samples[random.below(samples.len() as u64) as usize];
                let from = random.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            4 => {
                let copy = bytes[at..].to_vec();
                bytes.extend(copy.iter().take(200));
            }
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => bytes.push(random.next_u64() as u8),
        }
    }
    bytes.truncate(1 << 16);
    bytes
}

/// Hands mutations of `samples` to `decode`.
fn fuzz(target: &str, samples: &[Vec<u8>], mut decode: impl FnMut(&[u8])) {
    let first = variable("FUZZ_SEED").unwrap_or(1);
    let until = variable("FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut seed = first;
    while until.map_or(seed < first + ROUNDS, |until| Instant::now() < until) {
        let bytes = mutated(&mut Seeded::of(seed, 0, 0), samples);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| decode(&bytes))) {
            println!("{target}: FUZZ_SEED={seed}: {bytes:02x?}");
            std::panic::resume_unwind(panic);
        }
        seed += 1;
    }
}

/// As [`fuzz`], for text.
fn fuzz_text(target: &str, samples: &[&str], mut decode: impl FnMut(&str)) {
    let samples: Vec<Vec<u8>> = samples.iter().map(|text| text.as_bytes().to_vec()).collect();
    fuzz(target, &samples, |bytes| decode(&String::from_utf8_lossy(bytes)));
}

fn frame(kind: Kind) -> Frame {
    Frame { length: 100, tag: 7 << 32 | 1, slot: 3, ..Frame::bare(kind) }
}

#[test]
fn tcp() {
    let key = transport::Key::new([1; 32]);
    let id = Identity { from: 1, to: 2, eager_bytes: 65_536, ..Identity::default() };
    let proof = id.prove_dialler(&key, &[2; 16]);
    let greetings = [
        Greeting::Challenge([3; 16]),
        Greeting::Hello(id, proof),
        Greeting::Welcome(id, proof),
        Greeting::Refuse(Err(9)),
    ];
    let greetings: Vec<Vec<u8>> = greetings.iter().map(|greeting| greeting.encode().to_vec()).collect();
    fuzz("greetings of TCP", &greetings, |bytes| {
        uring::wire::plausible(bytes);
        let Some(bytes) = bytes.first_chunk::<GREETING_BYTES>() else { return };
        if let Ok(Greeting::Hello(id, proof)) = Greeting::decode(bytes) {
            assert!(!id.is_dialler(&key, &[4; 16], &proof), "A2");
        }
    });
    let frames: Vec<Vec<u8>> = [Kind::Eager, Kind::Data, Kind::Rts, Kind::Note]
        .map(|k| uring::wire::encode(&frame(k)).to_vec())
        .to_vec();
    fuzz("frames of TCP", &frames, |bytes| {
        if let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() {
            let _ = uring::wire::decode(bytes);
        }
    });
}

#[test]
fn shared_memory() {
    use ringway_dataplane::shm::wire;
    let key = transport::Key::new([1; 32]);
    let id = wire::Identity { from: 1, to: 2, ..wire::Identity::default() };
    let offer = wire::Offer { eager_bytes: 65_536, ..wire::Offer::default() };
    let greetings = [
        wire::Greeting::Knock(id),
        wire::Greeting::Challenge([3; 16], id.prove_listener(&key, &[3; 16])),
        wire::Greeting::Hello(offer, id.prove_dialler(&key, &[3; 16], &offer)),
        wire::Greeting::Welcome(offer),
        wire::Greeting::Refuse(Err(9)),
    ];
    let greetings: Vec<Vec<u8>> = greetings.iter().map(|greeting| greeting.encode().to_vec()).collect();
    fuzz("greetings of shared memory", &greetings, |bytes| {
        let Some(bytes) = bytes.first_chunk::<{ wire::GREETING_BYTES }>() else { return };
        match wire::Greeting::decode(bytes) {
            Ok(wire::Greeting::Challenge(nonce, proof)) => {
                assert!(nonce == [3; 16] || !id.is_listener(&key, &nonce, &proof), "A2");
            }
            Ok(wire::Greeting::Hello(offer, proof)) => {
                assert!(!id.is_dialler(&key, &[4; 16], &offer, &proof), "A2");
            }
            _ => {}
        }
    });
    let records: Vec<Vec<u8>> = [Kind::Eager, Kind::Data, Kind::Rts, Kind::Note]
        .map(|kind| wire::encode(&frame(kind)).0.to_vec())
        .to_vec();
    fuzz("records of shared memory", &records, |bytes| {
        if let Some(bytes) = bytes.first_chunk::<{ wire::HEADER_BYTES }>() {
            let _ = wire::decode(bytes);
        }
        if let Some(bytes) = bytes.first_chunk::<{ wire::PLACE_BYTES }>() {
            let _ = wire::decode_place(bytes);
        }
    });
}

#[test]
fn rdma() {
    let key = transport::Key::new([1; 32]);
    let hello = Hello {
        answer: Answer::Heard,
        rails: 2,
        ends: [(17, 1), (18, 2), (0, 0), (0, 0)],
        receives: 64,
        ..Hello::default()
    };
    fuzz("hellos of RDMA", &[hello.encode(&key).to_vec()], |bytes| {
        if let Some((read, proof)) = Hello::decode(bytes) {
            assert!(read == hello || !read.is_proven(&key, &proof));
        }
    });
    let mut message = vec![0; 4096];
    let n = rdma::wire::encode(&frame(Kind::Eager), 3, &mut message);
    message.truncate(n + 100);
    fuzz("messages of RDMA", &[message], |bytes| {
        drop(rdma::wire::decode(bytes).map(|(frame, ..)| frame));
        if let Some((whole, _, payload)) = rdma::wire::decode_whole(bytes) {
            assert_eq!(whole.length, payload.len() as u64);
        }
    });
}

#[test]
fn addresses() {
    let bind = || vec![Bind::new([127, 0, 0, 1].into(), "lo")];
    let open = |me| TcpTransport::new(Config::new(me, Keyring::default(), 7, bind())).unwrap();
    let (mut mine, other) = (open(1), open(2));
    let tcp = other.address().0;
    fuzz("addresses of TCP", std::slice::from_ref(&tcp), |bytes| {
        let _ = mine.connect(Peer(1), &Address(bytes.to_vec()));
        mine.poll(&mut Vec::new());
    });
    let offer = |name: &str| Offer { name: name.to_owned(), required: false, address: Address(tcp.clone()) };
    let withheld = Withheld { name: "rdma".to_owned(), why: "no device".to_owned() };
    let offers = Offers { offered: vec![offer("tcp"), offer("shm")], withheld: vec![withheld] };
    fuzz("offers", &[write_offers(&offers).0], |bytes| drop(read_offers(&Address(bytes.to_vec()))));
    let mut rails = b"RWR1\x0c\0".to_vec();
    rails.extend([5; 12]);
    rails.extend([1; 120]);
    fuzz("offers of RDMA", &[rails], |bytes| drop(RdmaOffer::from_bytes(bytes)));
    let task = DataPlaneTask {
        name: "/job:a/task:0".into(),
        address: tcp,
        secret: vec![1; 32],
        ..Default::default()
    };
    let any = prost_types::Any { type_url: TASK_TYPE_URL.to_owned(), value: task.encode_to_vec() };
    fuzz("tasks", &[any.encode_to_vec(), any.value], |bytes| {
        let any = prost_types::Any::decode(bytes);
        drop(any.map(|any| DataPlaneTask::decode(any.value.as_slice())));
        drop(DataPlaneTask::decode(bytes));
    });
}

#[test]
fn rendezvous() {
    let key = "/job:a/replica:0/task:0/device:CPU:0;0000000000000001;/job:b/replica:0/task:0/device:CPU:0;edge_5_x;0:0";
    let mut messages = Vec::new();
    for message in [
        Message::Ask { request: 1, step: 2, key },
        Message::Value { request: 1, meta: b"meta", payload: b"payload" },
    ] {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        messages.push(bytes);
    }
    fuzz("messages of the rendezvous", &messages, |bytes| drop(Message::decode(bytes)));
    let parts: Vec<Vec<u8>> = messages
        .iter()
        .flat_map(|m| notes(m).map(|note| note.bytes().to_vec()).collect::<Vec<_>>())
        .collect();
    let mut assembly = Assembly::default();
    fuzz("notes of the rendezvous", &parts, |bytes| {
        drop(assembly.take(bytes).map(|whole| whole.map(<[u8]>::len)))
    });
    fuzz_text("keys", &[key], |text| drop((Key::parse(text), Key::new(text))));
}

#[test]
fn settings() {
    let values = [
        "auto",
        "^eth0,=ib1",
        "mlx5:1,^=mlx5_3",
        "10.1.0.0/16",
        "fd00::/8",
        "[::1]:29400",
        "host:1",
        "0-3,8",
        "64K",
        "on",
        "ring,tree",
        "^tcp",
        "18446744073709551616G",
        "-1",
        "0123456789abcdef",
    ];
    // Files are another matter.
    let names = TABLE.iter().map(|row| row.name).filter(|name| !name.ends_with("_FILE"));
    let names: Vec<&str> = names.collect();
    let mut at = 0;
    fuzz_text("settings", &values, |text| {
        at += 1;
        drop(Settings::from_pairs([(names[at % names.len()], text)]));
        drop((HostPort::parse(text), DeviceName::parse(text)));
    });
}

#[test]
fn clusters() {
    let samples = [
        r#"{"worker": ["a:1", "b:2"], "ps": {"0": "c:3"}}"#,
        r#"{"job": [{"name": "worker", "tasks": {"0": "a:1"}}]}"#,
        r#"{"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}"#,
    ];
    let here = Here { pid: 10, parent_pid: 9, control_socket: None, ..Here::find() };
    fuzz_text("clusters", &samples, |text| {
        drop(Cluster::parse(text));
        let vars: Vars = [("TF_CONFIG".to_owned(), text.to_owned())].into_iter().collect();
        drop(Launch::discover(&Explicit::default(), &Settings::default(), &vars, &here));
    });
    let lists = ["node[1-3,7],other-[01-12]", "n[1", "a,b,,c", "n[4294967290-4294967299]"];
    fuzz_text("lists of hosts", &lists, |text| {
        let vars = [
            ("SLURM_JOB_ID", "1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_STEP_NODELIST", text),
        ];
        let vars: Vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        drop(Launch::discover(&Explicit::default(), &Settings::default(), &vars, &here));
    });
}

#[test]
fn places() {
    let sites = ["machine=a package=0 node=1 rail=0 switches=rack1/row2", "machine=node7"];
    fuzz_text("sites", &sites, |text| drop(text.parse::<Site>()));
    let switches =
        ["SwitchName=s0 Nodes=n[0-3]\nSwitchName=top Switches=s[0-1] # all", "BlockName=b Nodes=a,b"];
    fuzz_text("switches", &switches, |text| drop(Fabric::parse(text)));
    let stores = ["etcd://a,b:1,[::1]:2/x/y", "etcds://host:2379"];
    fuzz_text("stores", &stores, |text| drop(EtcdAddress::parse(text, "job")));
    let heading = "ringway 0.1.0 rank3 of job run-1, coordinator 127.0.0.1:29400, pid 17";
    fuzz_text("headings", &[heading], |text| drop(Heading::parse(text)));
    fuzz_text("times", &["2026-11-30T04:00:00.5Z"], |text| {
        let _ = parse_time(text);
    });
}

fn shaped(dtype: DataType, sizes: &[i64]) -> TensorProto {
    let dim = sizes.iter().map(|size| Dim { size: *size, name: String::new() }).collect();
    let shape = TensorShapeProto { dim, unknown_rank: false };
    TensorProto { dtype: dtype as i32, tensor_shape: Some(shape), ..Default::default() }
}

/// Whether a message asks for memory that would be found, and take long to fill.
fn spreads(proto: &TensorProto) -> bool {
    let sizes = proto.tensor_shape.iter().flat_map(|shape| &shape.dim).map(|dim| dim.size);
    let elements = sizes.fold(1_i64, |all, size| all.saturating_mul(size));
    (SPREAD_ELEMENTS..1 << 34).contains(&elements)
}

#[test]
fn tensors() {
    let samples = [
        TensorProto { float_val: vec![1.5], ..shaped(DataType::DtFloat, &[2, 3]) },
        TensorProto { tensor_content: vec![7; 16].into(), ..shaped(DataType::DtInt32, &[4]) },
        TensorProto { string_val: vec![b"a".to_vec(), b"bc".to_vec()], ..shaped(DataType::DtString, &[2]) },
        TensorProto { half_val: vec![15360], ..shaped(DataType::DtHalf, &[1, 0, 5]) },
        TensorProto { scomplex_val: vec![1.0, 2.0], ..shaped(DataType::DtComplex64, &[]) },
    ];
    let samples: Vec<Vec<u8>> = samples.iter().map(TensorProto::encode_to_vec).collect();
    fuzz("tensors", &samples, |bytes| {
        if let Ok(proto) = TensorProto::decode(bytes)
            && !spreads(&proto)
            && let Ok(tensor) = Tensor::from_proto(&proto)
        {
            assert!(Tensor::from_proto(&tensor.to_proto()).is_ok());
        }
    });
}

#[test]
fn graphs() {
    let attr = |value| AttrValue { value: Some(value) };
    let node = |name: &str, op: &str, input: &[&str]| NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        input: input.iter().map(|&i| i.to_owned()).collect(),
        device: "/job:worker/task:0/device:CPU:0".to_owned(),
        attr: [("T".to_owned(), attr(Value::Type(DataType::DtFloat as i32)))].into_iter().collect(),
        ..Default::default()
    };
    let mut constant = node("c", "Const", &[]);
    constant.attr.insert("dtype".to_owned(), attr(Value::Type(DataType::DtFloat as i32)));
    let value = TensorProto { float_val: vec![1.0], ..shaped(DataType::DtFloat, &[2]) };
    constant.attr.insert("value".to_owned(), attr(Value::Tensor(value)));
    let graph = GraphDef {
        node: vec![constant, node("a", "Add", &["c", "c:0"]), node("m", "MatMul", &["a", "c", "^a"])],
        ..Default::default()
    };
    fuzz("graphs", &[graph.encode_to_vec()], |bytes| {
        if let Ok(def) = GraphDef::decode(bytes) {
            drop(Graph::from_def(&def));
        }
    });
}

/// A cluster whose state is kept.
fn durable() -> CoordinatorConfig {
    CoordinatorConfig { durable: true, ..CoordinatorConfig::one_job("worker", 2) }
}

fn asked(coordinator: &mut Coordinator, requests: Vec<Request>) -> Vec<Effect> {
    let mut effects = Vec::new();
    for (reply, request) in (1..).map(ReplyTo).zip(requests) {
        coordinator.on_event(Time(1_000_000_000), Event::Ask { reply, from: None, request }, &mut effects);
    }
    effects
}

/// What tasks ask of a coordinator, so that all kinds of state come to be.
fn requests() -> Vec<Request> {
    let task = |index| TaskId::new("worker", index).unwrap();
    let life = |index| Incarnation(7 + u64::from(index));
    let process = |index| Process {
        task: task(index),
        incarnation: life(index),
        host: HostId::new("here", "boot").unwrap(),
        pid: 100 + index,
    };
    let insert = Request::Insert { key: "a/b".to_owned(), value: vec![1, 2, 3], overwrite: false };
    let mut requests = Vec::new();
    for index in [0, 1] {
        requests.push(Request::Register { task: task(index), incarnation: life(index), silence: None });
        requests.push(Request::WaitForAll { task: task(index), devices: Vec::new() });
        let (id, timeout, source) = ("step".to_owned(), Duration::from_secs(9), task(index));
        let barrier = BarrierCall { id, counter: 0, counted: false, timeout, tasks: Vec::new(), source };
        requests.push(Request::Barrier(barrier));
        requests.push(Request::Join(Box::new(Join {
            group: "world".to_owned(),
            process: process(index),
            rank: Some(index),
            size: 2,
            addresses: vec![5; 40],
            timeout: None,
            hosts_coordinator: false,
            fresh_secret: [1; 32],
        })));
        let call = CallId { task: task(index), incarnation: life(index), sequence: 4, oldest: 2 };
        requests.push(Request::Once { call, request: Box::new(insert.clone()) });
    }
    let error = TaskError { code: Code::Internal, message: "it failed".to_owned() };
    requests.push(Request::ReportError { task: task(1), error });
    requests.push(Request::Overview { names: 3 });
    requests
}

/// The state of a coordinator that did all that.
fn remembered() -> Vec<Write> {
    let effects = asked(&mut Coordinator::new(durable()), requests());
    let writes = effects.into_iter().filter_map(|effect| match effect {
        Effect::Remember { writes } => Some(writes),
        _ => None,
    });
    writes.flatten().collect()
}

fn restored(writes: impl IntoIterator<Item = Write>) -> Option<Coordinator> {
    let entries = writes.into_iter().filter_map(|write| Some((write.key, write.value?)));
    Coordinator::restore(durable(), entries, Time(5)).ok()
}

/// What a coordinator begins from, in a file or in etcd.
#[test]
fn remembered_state() {
    let stored = |write: &Write| stored_batch::Write {
        key: write.key.clone(),
        value: write.value.as_ref().map(|value| value.to_vec()),
    };
    let writes = remembered();
    for kind in ["cluster", "epoch", "member/", "job/", "once/", "barrier/", "group/", "key/"] {
        assert!(writes.iter().any(|write| write.key.starts_with(kind)), "{kind} is among the samples");
    }
    assert!(restored(writes.clone()).is_some());
    // Each alone too, so that mutations of the small ones are as many.
    let whole = StoredBatch { writes: writes.iter().map(stored).collect() };
    let alone = writes.iter().map(|write| StoredBatch { writes: vec![stored(write)] });
    let samples: Vec<Vec<u8>> =
        alone.chain([whole.clone(), whole]).map(|batch| batch.encode_to_vec()).collect();
    fuzz("remembered state", &samples, |bytes| {
        let Ok(batch) = StoredBatch::decode(bytes) else { return };
        let writes =
            batch.writes.into_iter().map(|w| Write { key: w.key, value: w.value.map(std::sync::Arc::new) });
        if let Some(mut coordinator) = restored(writes) {
            // It goes on as any other.
            asked(&mut coordinator, requests());
            coordinator.on_time(Time(u64::MAX / 2), &mut Vec::new());
        }
    });
}

#[test]
fn state_files() {
    // In memory where that can be had: a file that is cut off is synced.
    let shm = std::path::Path::new("/dev/shm");
    let folder = if shm.is_dir() { shm } else { std::path::Path::new(env!("CARGO_TARGET_TMPDIR")) };
    let mut count = 0;
    let mut path = || {
        count += 1;
        folder.join(format!("ringway-fuzz-{}-{count}.state", std::process::id()))
    };
    let remove = |path: &std::path::Path| {
        for ending in ["", ".lock", ".new"] {
            // Most have no second file.
            let _ = std::fs::remove_file(format!("{}{ending}", path.display()));
        }
    };
    let sample = path();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = FileStore::open(&sample, Sync::System).unwrap();
    runtime.block_on(async {
        let (lease, _) = store.grant().await.unwrap();
        let Claim::Won { revision } = store.claim(lease, "me").await.unwrap() else { panic!("nobody else") };
        for write in remembered() {
            store.commit(Term { revision, lease }, vec![vec![write]]).await.unwrap();
        }
    });
    let bytes = std::fs::read(&sample).unwrap();
    remove(&sample);
    fuzz("state files", &[bytes], |bytes| {
        let path = path();
        std::fs::write(&path, bytes).unwrap();
        let entries = FileStore::open(&path, Sync::System).map(|store| runtime.block_on(store.load()));
        remove(&path);
        if let Ok(Ok(entries)) = entries {
            drop(Coordinator::restore(durable(), entries, Time(5)));
        }
    });
}
