//! Placement (P1 to P3), pruning (N1, N2), extension, and what is refused.

use super::*;

fn placed(nodes: Vec<NodeDef>, soft: bool) -> Result<Vec<String>, String> {
    let devices = devices(2);
    let program = Program::new(graph(nodes), &devices, soft).map_err(|error| error.to_string())?;
    Ok(program.placement().iter().map(|at| devices.get(*at).full.to_string()).collect())
}

const PS: &str = "/job:ps/replica:0/task:0/device:CPU:0";
const W0: &str = "/job:worker/replica:0/task:0/device:CPU:0";
const W1: &str = "/job:worker/replica:0/task:1/device:CPU:0";

#[test]
fn p1_devices_asked_for_are_given() {
    let nodes = vec![constant("a", "/job:ps"), constant("b", "/job:worker/task:1"), constant("c", "")];
    assert_eq!(placed(nodes, false).unwrap(), [PS, W1, W0]);
    let error = placed(vec![constant("lost", "/job:worker/task:7")], false).unwrap_err();
    assert_eq!(
        error,
        format!(
            "Cannot assign a device for operation lost: {{{{node lost}}}} was explicitly assigned to \
             /job:worker/task:7 but available devices are [ {PS}, {W0}, {W1} ]. Make sure the device specification \
             refers to a valid device.\n\t [[lost]]"
        )
    );
    let gpu = || vec![constant("g", "/job:worker/task:1/device:GPU:0")];
    assert!(placed(gpu(), false).unwrap_err().contains("/device:GPU:0"));
    assert_eq!(placed(gpu(), true).unwrap(), [W1]);
    assert!(placed(vec![constant("lost", "/job:nowhere")], true).unwrap_err().contains("/job:nowhere"));
}

fn variable(name: &str, device: &str) -> NodeDef {
    node(name, "VarHandleOp", &[], device, &[("dtype", FLOAT), ("shape", Value::Shape(Default::default()))])
}

#[test]
fn p2_readers_and_bound_nodes_are_together() {
    let nodes = vec![
        variable("v", "/job:ps"),
        node("read", "ReadVariableOp", &["v"], "", &[("dtype", FLOAT)]),
        bound_to(constant("initial", ""), "v"),
        bound_to(constant("one", ""), "nobody"),
        bound_to(constant("two", "/job:worker/task:1"), "nobody"),
    ];
    assert_eq!(placed(nodes, false).unwrap(), [PS, PS, PS, W1, W1]);
    let nodes = vec![variable("v", "/job:ps"), bound_to(constant("initial", "/job:worker"), "v")];
    let error = placed(nodes, false).unwrap_err();
    assert!(error.contains("{{colocation_node initial}} and {{colocation_node v}}"), "{error}");
}

#[test]
fn p1_readers_follow_what_they_read_whatever_they_ask_for() {
    let read = node("read", "ReadVariableOp", &["v"], "/job:worker", &[("dtype", FLOAT)]);
    // The node that is bound to the variable comes first, as the initial value does in a client's graph.
    let nodes = vec![bound_to(constant("initial", ""), "v"), variable("v", "/job:ps"), read];
    assert_eq!(placed(nodes, false).unwrap(), [PS, PS, PS]);
}

#[test]
fn others_go_near_their_inputs_and_constants_near_their_readers() {
    let nodes = vec![
        constant("a", "/job:worker/task:1"),
        constant("free", ""),
        placeholder("x"),
        add("sum", "a", "free", ""),
        add("both", "sum", "x", ""),
        constant("alone", ""),
    ];
    assert_eq!(placed(nodes, false).unwrap(), [W1, W1, W1, W1, W1, W0]);
}

#[test]
fn p3_an_extension_leaves_what_is_there() {
    let devices = devices(2);
    let program = Program::new(graph(vec![constant("a", "")]), &devices, false).unwrap();
    let more = || graph(vec![add("b", "a", "c", "/job:ps"), constant("c", "/job:ps")]);
    let extended = program.extend(more(), 0, &devices, false).unwrap();
    let full = |at: usize| devices.get(extended.placement()[at]).full.to_string();
    assert_eq!((full(0).as_str(), full(1).as_str(), extended.version()), (W0, PS, 1));
    let elsewhere = bound_to(constant("d", "/job:ps"), "a");
    let error = program.extend(graph(vec![elsewhere]), 0, &devices, false).unwrap_err();
    assert!(error.to_string().contains("{{colocation_node d}} and {{colocation_node a}}"), "{error}");
    // A reader follows, also when what it reads is there already.
    let held = Program::new(graph(vec![variable("v", "")]), &devices, false).unwrap();
    let read = node("read", "ReadVariableOp", &["v"], "/job:ps", &[("dtype", FLOAT)]);
    let held = held.extend(graph(vec![read]), 0, &devices, false).unwrap();
    assert_eq!(held.placement()[0], held.placement()[1]);
    let said = |error: MasterError| (error.code().number(), error.to_string());
    let (code, message) = said(extended.extend(more(), 0, &devices, false).unwrap_err());
    assert_eq!((code, message.as_str()), (10, "Current version is 1 but caller expected 0."));
    let (code, message) = said(extended.extend(more(), 1, &devices, false).unwrap_err());
    assert_eq!(code, 3);
    assert!(message.starts_with("GraphDef argument to Extend includes node 'b'"), "{message}");
}

#[test]
fn n1_only_what_is_needed_is_kept() {
    let nodes = vec![
        placeholder("x"),
        constant("a", ""),
        add("s", "x", "a", ""),
        add("t", "s", "a", ""),
        constant("unused", ""),
    ];
    let ops = |signature| {
        let plan = plan(nodes.clone(), signature).unwrap();
        let mut names: Vec<String> =
            plan.parts.iter().flat_map(|part| &part.graph.node).map(|node| node.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(ops(wants(&["x:0"], &["s:0"], &[])), ["_recv_x_0", "_send_s_0", "a", "s"]);
    // Fed in the middle: what is behind is not needed.
    assert_eq!(ops(wants(&["s:0"], &["t:0"], &[])), ["_recv_s_0", "_send_t_0", "a", "t"]);
    assert_eq!(ops(wants(&[], &["a:0", "a"], &["unused"])), ["_send_a_0", "a", "unused"]);
}

#[test]
fn stand_ins_replace_what_they_stand_for() {
    let nodes = vec![constant("a", ""), placeholder("x"), identity("y", "x", ""), identity("z", "y", "")];
    let connected = |from: &str, to: &str| Signature {
        connections: vec![(from.to_owned(), to.to_owned())],
        ..wants(&[], &["z:0"], &[])
    };
    let plan1 = plan(nodes.clone(), connected("a:0", "x:0")).unwrap();
    let y = plan1.parts[0].graph.node.iter().find(|node| node.name == "y").unwrap();
    assert_eq!(y.input, ["a"]);
    let error = plan(nodes, connected("z:0", "x:0")).unwrap_err();
    assert!(error.to_string().contains("contains a cycle"), "{error}");
}

#[test]
fn what_cannot_be_run_is_refused_in_known_words() {
    let nodes = || vec![placeholder("x"), identity("y", "x", "")];
    let said = |signature| {
        let error = plan(nodes(), signature).unwrap_err();
        (error.code().number(), error.to_string())
    };
    let is = |signature, code, message: &str| assert_eq!(said(signature), (code, message.to_owned()));
    is(wants(&[], &[], &[]), 3, "Must specify at least one target to fetch or execute.");
    is(wants(&[], &["nothing:0"], &[]), 5, "FetchOutputs node nothing:0: not found");
    is(wants(&[], &["y:4"], &[]), 3, "FetchOutputs y:4: output index too large, must be < 1");
    is(wants(&[], &[], &["nothing"]), 5, "PruneForTargets: Some target nodes not found: nothing");
    is(wants(&["gone:0"], &["y:0"], &[]), 5, "FeedInputs: unable to find feed output gone:0");
    is(wants(&["x:0", "x"], &["y:0"], &[]), 3, "Endpoint \"x\" fed more than once.");
    is(wants(&["x:0"], &["x:0"], &[]), 3, "x:0 is both fed and fetched.");
}
