//! S1 to S4: random graphs are cut, and the parts are run together by an interpreter, in random order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;
use crate::core::graph::Graph;
use crate::core::simulate::random::Random;

/// A graph of up to 40 nodes over 3 tasks, with control edges.
fn random_graph(random: &mut Random) -> Vec<NodeDef> {
    let count = 2 + random.below(39) as usize;
    let places = ["", "/job:ps", "/job:worker/task:0", "/job:worker/task:1"];
    let mut nodes: Vec<NodeDef> = Vec::new();
    for at in 0..count {
        let device = places[random.below(4) as usize];
        let name = format!("n{at}");
        let pick = |random: &mut Random| format!("n{}", random.below(at as u64));
        let mut node = match if at == 0 { 0 } else { random.below(5) } {
            0 => constant(&name, device),
            1 => node(&name, "NoOp", &[], device, &[]),
            2 => identity(&name, &valued(&nodes, pick(random)), device),
            _ => {
                let (a, b) = (valued(&nodes, pick(random)), valued(&nodes, pick(random)));
                add(&name, &a, &b, device)
            }
        };
        while at > 0 && random.below(3) == 0 {
            node.input.push(format!("^{}", pick(random)));
        }
        nodes.push(node);
    }
    nodes
}

/// The node, or the first before it that gives a value; n0 does.
fn valued(nodes: &[NodeDef], name: String) -> String {
    let mut at: usize = name[1..].parse().unwrap();
    while nodes[at].op == "NoOp" {
        at -= 1;
    }
    nodes[at].name.clone()
}

fn mix(op: &str, own: &str, inputs: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (op, own, inputs).hash(&mut hasher);
    hasher.finish()
}

/// What a node of the graph gives, with some values fed.
fn value(op: &str, name: &str, inputs: &[u64]) -> u64 {
    match op {
        "Const" => mix(op, name, &[]),
        "Identity" => inputs[0],
        _ => mix(op, "", inputs),
    }
}

fn text(node: &NodeDef, attr: &str) -> String {
    match node.attr.get(attr).and_then(|attr| attr.value.as_ref()) {
        Some(Value::S(text)) => String::from_utf8(text.clone()).unwrap(),
        other => panic!("{}: {attr} is {other:?}", node.name),
    }
}

fn key(node: &NodeDef) -> String {
    let Some(Value::I(incarnation)) = node.attr["send_device_incarnation"].value else { panic!("{node:?}") };
    let incarnation = incarnation as u64;
    let (from, to, tensor) =
        (text(node, "send_device"), text(node, "recv_device"), text(node, "tensor_name"));
    format!("{from};{incarnation:016x};{to};{tensor};0:0")
}

/// Runs all parts to their end. Values by rendezvous key, and the order in which nodes ran.
fn run(
    parts: &[Part],
    feeds: &HashMap<String, u64>,
    random: &mut Random,
) -> (HashMap<String, u64>, Vec<String>) {
    let mut table = feeds.clone();
    let mut values: HashMap<(usize, String), u64> = HashMap::new();
    let mut ran: Vec<String> = Vec::new();
    let mut left: Vec<(usize, &NodeDef)> =
        parts.iter().flat_map(|part| part.graph.node.iter().map(|node| (part.task, node))).collect();
    while !left.is_empty() {
        let ready = |(task, node): &(usize, &NodeDef)| {
            let there = |input: &String| {
                values.contains_key(&(
                    *task,
                    input.trim_start_matches('^').split(':').next().unwrap().to_owned(),
                ))
            };
            node.input.iter().all(there) && (node.op != "_Recv" || table.contains_key(&key(node)))
        };
        let ready: Vec<usize> = (0..left.len()).filter(|at| ready(&left[*at])).collect();
        assert!(
            !ready.is_empty(),
            "nothing can run of {:?}",
            left.iter().map(|(_, n)| &n.name).collect::<Vec<_>>()
        );
        let (task, node) = left.swap_remove(ready[random.below(ready.len() as u64) as usize]);
        let data = node.input.iter().filter(|input| !input.starts_with('^'));
        let inputs: Vec<u64> = data.map(|input| values[&(task, input.clone())]).collect();
        let result = match node.op.as_str() {
            "_Recv" => table[&key(node)],
            "_Send" => {
                assert_eq!(table.insert(key(node), inputs[0]), None, "a key is sent to once");
                0
            }
            op => value(op, &node.name, &inputs),
        };
        ran.push(node.name.clone());
        values.insert((task, node.name.clone()), result);
    }
    (table, ran)
}

/// What the whole graph gives.
fn whole(nodes: &[NodeDef], feeds: &HashMap<String, u64>) -> BTreeMap<String, u64> {
    let mut values: BTreeMap<String, u64> = BTreeMap::new();
    for node in nodes {
        let data = node.input.iter().filter(|input| !input.starts_with('^'));
        let inputs: Vec<u64> =
            data.map(|input| *feeds.get(&format!("{input}:0")).unwrap_or(&values[input])).collect();
        values.insert(node.name.clone(), value(&node.op, &node.name, &inputs));
    }
    values
}

fn check(seed: u64) {
    let random = &mut Random::new(seed);
    let nodes = random_graph(random);
    let give: Vec<&NodeDef> = nodes.iter().filter(|node| node.op != "NoOp").collect();
    let feeds: HashSet<String> = (0..random.below(3))
        .map(|_| format!("{}:0", give[random.below(give.len() as u64) as usize].name))
        .collect();
    let mut fetches: Vec<String> =
        (0..3).map(|_| format!("{}:0", give[random.below(give.len() as u64) as usize].name)).collect();
    fetches.retain(|fetch| !feeds.contains(fetch));
    let target = nodes[random.below(nodes.len() as u64) as usize].name.clone();
    let feeds: Vec<String> = feeds.into_iter().collect();
    let signature = Signature {
        feeds: feeds.clone(),
        fetches: fetches.clone(),
        targets: vec![target],
        ..Signature::default()
    };
    let plan = plan(nodes.clone(), signature).unwrap();

    let fed: HashMap<String, u64> = feeds.iter().map(|name| (name.clone(), mix("fed", name, &[]))).collect();
    let given: HashMap<String, u64> = plan
        .parts
        .iter()
        .flat_map(|part| part.feeds.iter().map(|(feed, key)| (key.to_string(), fed[&feeds[*feed]])))
        .collect();
    let (table, ran) = run(&plan.parts, &given, random);
    let expected = whole(&nodes, &fed);
    for part in &plan.parts {
        for (key, places) in &part.fetches {
            let name = fetches[places[0]].trim_end_matches(":0");
            assert_eq!(table[&**key], expected[name], "{name}");
        }
    }
    check_order(&nodes, &ran, &feeds);
    check_sends(&plan.parts);
    for part in &plan.parts {
        // Workers read parts as graphs: they must be sound.
        Graph::from_def(&part.graph).unwrap();
    }
}

/// Whoever waits for a node runs behind it, also on another task.
fn check_order(nodes: &[NodeDef], ran: &[String], feeds: &[String]) {
    let place = |name: &str| ran.iter().position(|known| known == name);
    for node in nodes {
        let Some(at) = place(&node.name) else { continue };
        for before in node.input.iter().filter_map(|input| input.strip_prefix('^')) {
            let before_at = place(before).unwrap_or_else(|| panic!("{before} did not run; fed: {feeds:?}"));
            assert!(before_at < at, "{before} must run before {}", node.name);
        }
    }
    let mut once: Vec<&String> = ran.iter().collect();
    once.sort();
    assert!(once.windows(2).all(|pair| pair[0] != pair[1]), "every node runs once");
}

/// S1: a value goes to a task once.
fn check_sends(parts: &[Part]) {
    let mut sent = HashSet::new();
    for node in parts.iter().flat_map(|part| &part.graph.node).filter(|node| node.op == "_Send") {
        let client = node.attr["client_terminated"].value == Some(Value::B(true));
        assert!(sent.insert((node.input[0].clone(), text(node, "recv_device"), client)), "{node:?}");
    }
}

#[test]
fn s4_the_parts_together_are_the_graph() {
    for seed in 0..400 {
        let checked = std::panic::catch_unwind(|| check(seed));
        assert!(checked.is_ok(), "seed {seed}");
    }
}

#[test]
fn s3_keys_are_tensorflows() {
    let nodes = vec![constant("a", "/job:ps"), identity("y", "a", "/job:worker/task:1")];
    let plan = plan(nodes, wants(&[], &["y:0"], &[])).unwrap();
    let find = |op: &str, client| {
        let all = plan.parts.iter().flat_map(|part| &part.graph.node);
        let mut of =
            all.filter(move |n| n.op == op && n.attr["client_terminated"].value == Some(Value::B(client)));
        key(of.next().unwrap())
    };
    let expected = "/job:ps/replica:0/task:0/device:CPU:0;00000000000000a0;\
                    /job:worker/replica:0/task:1/device:CPU:0;edge_1_a;0:0";
    assert_eq!((find("_Send", false).as_str(), find("_Recv", false).as_str()), (expected, expected));
    let fetched = "/job:worker/replica:0/task:1/device:CPU:0;00000000000000a2;\
                   /job:worker/replica:0/task:1/device:CPU:0;y:0;0:0";
    assert_eq!(find("_Send", true), fetched);
    assert_eq!(&*plan.parts[1].fetches[0].0, fetched);
}

#[test]
fn s1_a_reference_is_read_behind_what_its_reader_waits_for() {
    let v = node(
        "v",
        "VariableV2",
        &[],
        "/job:ps",
        &[("dtype", FLOAT), ("shape", Value::Shape(Default::default()))],
    );
    let nodes = vec![
        v,
        constant("wait", "/job:worker/task:1"),
        identity("early", "v", "/job:worker/task:1"),
        node("late", "Identity", &["v", "^wait"], "/job:worker/task:1", &[("T", FLOAT)]),
    ];
    let plan = plan(nodes, wants(&[], &["early:0", "late:0"], &[])).unwrap();
    let worker = &plan.parts[1].graph.node;
    let input = |name: &str| worker.iter().find(|node| node.name == name).unwrap().input[0].clone();
    let recv = |name: &str| worker.iter().find(|node| node.name == input(name)).unwrap();
    assert!(recv("early").input.is_empty());
    assert_eq!(recv("late").input, ["^wait"]);
}

#[test]
fn needs_of_a_fetch_are_its_feeds() {
    let nodes = vec![placeholder("x"), placeholder("y"), identity("a", "x", ""), add("b", "a", "y", "")];
    let program = Program::new(graph(nodes), &devices(1), false).unwrap();
    let needs = program.needs(&wants(&["x:0", "y:0"], &["a:0", "b:0"], &[])).unwrap();
    assert_eq!(needs, [vec![0], vec![0, 1]]);
}
