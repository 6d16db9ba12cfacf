//! Every decoder of bytes that come from outside, on mutations of what it should read: none panics, none asks for absurd
//! memory, whatever it is given.
//!
//! Each target runs some rounds in the test command; `FUZZ_SECONDS=600 cargo test --release -p ringway-control --test fuzz`
//! runs each for that long. A failure prints the round's seed; `FUZZ_SEED=n` begins with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use prost::Message as _;
use ringway_control::core::coordination::preemption::parse_time;
use ringway_control::core::graph::{DeviceName, Graph};
use ringway_control::launch::cluster::Cluster;
use ringway_control::launch::{Explicit, Fabric, Here, Launch, Vars};
use ringway_control::runtime::rendezvous::TASK_TYPE_URL;
use ringway_control::settings::table::TABLE;
use ringway_control::settings::{HostPort, Settings};
use ringway_control::store::etcd::EtcdAddress;
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
use ringway_proto::ringway::v1::DataPlaneTask;
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::tensor_shape_proto::Dim;
use ringway_proto::tensorflow::{AttrValue, DataType, GraphDef, NodeDef, TensorProto, TensorShapeProto};
use ringway_topology::model::order::Site;

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
