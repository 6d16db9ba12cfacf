//! Loops over several tasks (F1, F2).

use super::*;

/// `while i < limit: i = i + step`, its sum on worker 1, the rest on worker 0.
fn counting() -> Vec<NodeDef> {
    let (w0, w1) = ("/job:worker/task:0", "/job:worker/task:1");
    let frame = |constant| {
        [("T", FLOAT), ("frame_name", Value::S(b"loop".to_vec())), ("is_constant", Value::B(constant))]
    };
    vec![
        constant("zero", w0),
        constant("limit", w0),
        constant("step", w1),
        node("enter", "Enter", &["zero"], w0, &frame(false)),
        node("enter_limit", "Enter", &["limit"], w0, &frame(true)),
        node("enter_step", "Enter", &["step"], w1, &frame(true)),
        node("merge", "Merge", &["enter", "next"], w0, &[("T", FLOAT), ("N", Value::I(2))]),
        node("less", "Less", &["merge", "enter_limit"], w0, &[("T", FLOAT)]),
        node("cond", "LoopCond", &["less"], w0, &[]),
        node("switch", "Switch", &["merge", "cond"], w0, &[("T", FLOAT)]),
        node("sum", "AddV2", &["switch:1", "enter_step"], w1, &[("T", FLOAT)]),
        node("next", "NextIteration", &["sum"], w0, &[("T", FLOAT)]),
        node("exit", "Exit", &["switch"], w0, &[("T", FLOAT)]),
    ]
}

fn find<'a>(nodes: &'a [NodeDef], name: &str) -> &'a NodeDef {
    nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("{name} is there"))
}

#[test]
fn f2_each_task_follows_the_loop() {
    let plan = plan(counting(), wants(&[], &["exit:0"], &[])).unwrap();
    for part in &plan.parts {
        let nodes = &part.graph.node;
        let merges: Vec<&NodeDef> =
            nodes.iter().filter(|node| node.op == "Merge" && node.name.contains("_cloop")).collect();
        assert_eq!(merges.len(), 1, "{:?}", nodes.iter().map(|n| &n.name).collect::<Vec<_>>());
        let switch = nodes.iter().find(|node| node.op == "Switch" && node.name.contains("_cloop")).unwrap();
        assert_eq!(switch.input[0], merges[0].name);
        let gate = format!("^{}", merges[0].name);
        for recv in nodes.iter().filter(|node| node.op == "_Recv") {
            assert_eq!(recv.input, [gate.as_str()], "what comes within the loop waits for its iteration");
        }
        let enter = find(nodes, &merges[0].input[0]);
        assert_eq!(find(nodes, &enter.input[0]).op, "Const");
        assert_eq!(enter.attr["frame_name"].value, Some(Value::S(b"loop".to_vec())));
    }
}

#[test]
fn a_loop_of_one_task_stays_as_it_is() {
    let mut nodes = counting();
    nodes.iter_mut().for_each(|node| node.device = "/job:worker/task:0".to_owned());
    let plan = plan(nodes, wants(&[], &["exit:0"], &[])).unwrap();
    assert_eq!(plan.parts.len(), 1);
    assert!(plan.parts[0].graph.node.iter().all(|node| !node.name.contains("_cloop") && node.op != "_Recv"));
}

#[test]
fn both_ways_into_an_iteration_are_on_one_task() {
    let mut nodes = counting();
    nodes.iter_mut().filter(|node| node.name == "next").for_each(|node| node.device = "/job:ps".to_owned());
    let error = plan(nodes, wants(&[], &["exit:0"], &[])).unwrap_err();
    assert!(error.to_string().contains("Cannot colocate nodes"), "{error}");
}

#[test]
fn f1_a_value_from_outside_needs_an_enter() {
    let mut nodes = counting();
    nodes.iter_mut().filter(|node| node.name == "sum").for_each(|node| node.input[1] = "step".to_owned());
    let error = plan(nodes, wants(&[], &["exit:0"], &[])).unwrap_err();
    assert!(error.to_string().starts_with("The node 'sum' has inputs from different frames."), "{error}");
}

#[test]
fn a_loop_over_tasks_needs_a_condition() {
    let mut nodes = counting();
    nodes.iter_mut().filter(|node| node.name == "cond").for_each(|node| {
        *node = node_of_bool();
    });
    let error = plan(nodes, wants(&[], &["exit:0"], &[])).unwrap_err();
    assert_eq!(error.to_string(), "A cross-device loop must have a pivot predicate: loop");
}

fn node_of_bool() -> NodeDef {
    let bool_type = Value::Type(DataType::DtBool as i32);
    node("cond", "Identity", &["less"], "/job:worker/task:0", &[("T", bool_type)])
}
