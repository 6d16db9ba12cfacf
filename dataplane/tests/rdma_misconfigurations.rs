//! What is commonly wrong with RDMA on a host or between two, each with its own diagnosis (R3). The hosts are a
//! recorded one, bent.

mod rdma_host;

use rdma_host::{Host, PORT0, PORT1};
use ringway_dataplane::rdma::RdmaConfig;
use ringway_dataplane::rdma::choice::{
    Choice, Mtu, NoRail, Opened, RailPair, RdmaOffer, RoceVersion, Survey, agree, choose,
};

const RXE0: &str = "=rxe0";
const RXE1: &str = "=rxe1";

fn config(bend: impl FnOnce(&mut RdmaConfig)) -> RdmaConfig {
    let mut config = RdmaConfig::default();
    bend(&mut config);
    config
}

fn only(hca: &str) -> RdmaConfig {
    config(|c| c.hca = Some(hca.parse().unwrap()))
}

fn refused(survey: &Survey, config: &RdmaConfig) -> NoRail {
    choose(survey, config).expect_err("this cannot work")
}

/// The offer of a chosen side; the device says what the files say.
fn offer(who: u8, choice: &Choice) -> RdmaOffer {
    let opened = |mtu: Option<Mtu>| Opened {
        mtu: mtu.unwrap_or(Mtu::B4096),
        bootstrap_queue_pair: 17,
        bootstrap_queue_key: 1,
    };
    let offer = RdmaOffer::new(vec![who], choice, |rail| opened(rail.mtu));
    assert_eq!(RdmaOffer::from_bytes(&offer.to_bytes()).as_ref(), Ok(&offer));
    offer
}

fn offers(one: (&Host, &RdmaConfig), two: (&Host, &RdmaConfig)) -> (RdmaOffer, RdmaOffer) {
    let side = |who, (host, config): (&Host, &RdmaConfig)| {
        offer(who, &choose(&host.survey(), config).expect("this side alone works"))
    };
    (side(1, one), side(2, two))
}

/// What both sides say, the same or each its own.
fn disagreement(one: (&Host, &RdmaConfig), two: (&Host, &RdmaConfig)) -> (String, String) {
    let (one, two) = offers(one, two);
    let said = |a, b| agree(a, b).expect_err("they have nothing in common").to_string();
    (said(&one, &two), said(&two, &one))
}

fn agreed(one: (&Host, &RdmaConfig), two: (&Host, &RdmaConfig)) -> (Vec<RailPair>, RdmaOffer, RdmaOffer) {
    let (one, two) = offers(one, two);
    (agree(&one, &two).expect("they have a rail in common"), one, two)
}

/// One line that says what is wrong and what to do.
fn assert_told(line: &str, what: &str, remedy: &str) {
    assert!(line.contains(what), "{line}\n  does not say: {what}");
    assert!(line.contains(remedy), "{line}\n  does not advise: {remedy}");
    assert!(!line.contains('\n'), "{line}");
}

fn assert_refused(host: &Host, config: &RdmaConfig, what: &str, remedy: &str) {
    assert_told(&refused(&host.survey(), config).to_string(), what, remedy);
}

#[test]
fn a_healthy_host_uses_all_its_fastest_ports_by_their_routed_gid() {
    let survey = Host::soft_roce().survey();
    let choice = choose(&survey, &RdmaConfig::default()).unwrap();
    let rails: Vec<String> = choice.rails.iter().map(ToString::to_string).collect();
    // R5: index 1 because of what it is; index 0 is link-local.
    let expected = ["rxe0:1, GID 1, RoCE v2 10.77.0.1 on sr0", "rxe1:1, GID 1, RoCE v2 10.77.0.2 on sr1"];
    assert_eq!(rails, expected);
    assert_eq!(choice.rails[0].mtu, Some(Mtu::B4096));
    assert_eq!((choice.rails[0].rate_mbps, choice.rails[0].node_guid), (10_000, 0x00ff_fe77_0001));
    assert!(
        choice.verdicts[0].why.starts_with("used: the fastest that works; GID 1"),
        "{:?}",
        choice.verdicts
    );
    let (pairs, ..) = agreed((&Host::soft_roce(), &only(RXE0)), (&Host::soft_roce(), &only(RXE1)));
    assert_eq!((pairs.len(), pairs[0].my_gid_index, pairs[0].mtu), (1, Some(1), Mtu::B4096));
}

#[test]
fn a_kernel_without_rdma() {
    let host = Host::soft_roce().without("sys/class/infiniband");
    assert_refused(&host, &RdmaConfig::default(), "no RDMA loaded", "modprobe rdma_rxe");
    assert!(refused(&host.survey(), &RdmaConfig::default()).is_absence());
}

#[test]
fn a_kernel_without_a_device() {
    let host = Host::soft_roce().without("sys/class/infiniband").folder("sys/class/infiniband");
    assert_refused(&host, &RdmaConfig::default(), "there is no RDMA device", "lspci");
    assert!(refused(&host.survey(), &RdmaConfig::default()).is_absence());
}

#[test]
fn a_container_without_dev_infiniband() {
    let host = Host::soft_roce().without("dev/infiniband");
    let what = "/dev/infiniband is not there, so rxe0, rxe1 cannot be opened";
    assert_refused(&host, &RdmaConfig::default(), what, "docker run --device=/dev/infiniband");
    assert!(!refused(&host.survey(), &RdmaConfig::default()).is_absence());
}

#[test]
fn a_container_without_one_devices_file() {
    let host = Host::soft_roce().without("dev/infiniband/uverbs1");
    let what = "rxe1 cannot be opened: /dev/infiniband/uverbs1 is not there";
    assert_refused(&host, &only(RXE1), what, "docker run --device=/dev/infiniband/uverbs1");
    let choice = choose(&host.survey(), &RdmaConfig::default()).unwrap();
    assert_eq!(choice.rails.len(), 1, "the other one is used");
    assert!(choice.verdicts[1].why.contains("uverbs1 is not there"), "{:?}", choice.verdicts);
}

#[test]
fn no_permission_on_a_devices_file() {
    // A folder in its place refuses even root.
    let host = Host::soft_roce().without("dev/infiniband/uverbs0").folder("dev/infiniband/uverbs0");
    let what = "rxe0 cannot be opened: /dev/infiniband/uverbs0 is of user";
    assert_refused(&host, &only(RXE0), what, "join its group, or a udev rule");
}

#[test]
fn too_little_lockable_memory() {
    let limited = Host::soft_roce().with(
        "proc/self/limits",
        "Max locked memory         65536                65536                bytes",
    );
    let user = limited.clone().with("proc/self/status", "CapEff:\t0000000000000000");
    let what = "only 64 KiB of memory may be locked";
    assert_refused(&user, &RdmaConfig::default(), what, "ulimit -l unlimited");
    // Root of a container without privilege has the capability only there.
    let inside = limited.clone().with("proc/self/uid_map", "         0       1000          1");
    assert_refused(&inside, &RdmaConfig::default(), what, "ulimit -l unlimited");
    assert!(choose(&limited.survey(), &RdmaConfig::default()).is_ok(), "the limit does not bind root");
}

#[test]
fn no_verbs_library_and_no_provider() {
    let mut survey = Host::soft_roce().survey();
    survey.devices[0].known_to_library = false;
    let line = refused(&survey, &only(RXE0)).to_string();
    assert_told(&line, "the verbs library does not know rxe0", "ibverbs-providers");
    survey.library_missing = Some("libibverbs.so.1 cannot be loaded (not found)".to_owned());
    let line = refused(&survey, &RdmaConfig::default()).to_string();
    assert_told(&line, "the verbs library cannot be used: libibverbs.so.1", "apt install libibverbs1");
}

#[test]
fn a_gid_index_that_is_not_there() {
    let wrong = config(|c| c.gid_index = Some(3));
    let what = "port rxe0:1 has no GID at RINGWAY_IB_GID_INDEX=3: it has GID 0, RoCE v2 fe80::ff:fe77:1 on sr0; \
                GID 1, RoCE v2 10.77.0.1 on sr0";
    assert_refused(&Host::soft_roce(), &wrong, what, "unset RINGWAY_IB_GID_INDEX");
    let given = config(|c| c.gid_index = Some(1));
    let choice = choose(&Host::soft_roce().survey(), &given).unwrap();
    let why = &choice.verdicts[0].why;
    assert!(why.contains("GID 1, RoCE v2 10.77.0.1 on sr0 (RINGWAY_IB_GID_INDEX asks for it)"), "{why}");
}

#[test]
fn a_port_that_is_down() {
    // One end was set down: it is disabled, and the other end waits for it.
    let host = Host::link_down();
    assert_refused(&host, &only(RXE1), "port rxe1:1 is down (its link: Disabled)", "ip link set sr1 up");
    assert_refused(&host, &only(RXE0), "port rxe0:1 is down (its link: Polling)", "the other end");
    let line = refused(&host.survey(), &RdmaConfig::default()).to_string();
    assert_told(&line, "port rxe0:1 is down", "port rxe1:1 is down");
}

#[test]
fn infiniband_without_a_subnet_manager() {
    assert_eq!(
        choose(&Host::infiniband().survey(), &RdmaConfig::default()).unwrap().rails[0].to_string(),
        "rxe0:1, InfiniBand, LID 7"
    );
    let unmanaged = Host::infiniband()
        .with(&format!("{PORT0}/state"), "2: INIT")
        .with(&format!("{PORT0}/lid"), "0x0")
        .with(&format!("{PORT0}/sm_lid"), "0x0");
    let what = "port rxe0:1 is initialising and has no LID: no subnet manager";
    assert_refused(&unmanaged, &RdmaConfig::default(), what, "opensm");
}

#[test]
fn a_filter_that_leaves_nothing() {
    let what = "RINGWAY_IB_HCA=mlx5 leaves nothing of rxe0:1, rxe1:1";
    assert_refused(&Host::soft_roce(), &only("mlx5"), what, "name one of those in RINGWAY_IB_HCA");
    assert_refused(&Host::soft_roce(), &only("^rxe"), "RINGWAY_IB_HCA=^rxe leaves nothing", "or unset it");
    assert_refused(
        &Host::soft_roce(),
        &only("=rxe0:2"),
        "RINGWAY_IB_HCA==rxe0:2 leaves",
        "name one of those",
    );
}

#[test]
fn a_partition_key_that_is_not_there() {
    let what = "port rxe0:1 has no partition key at RINGWAY_IB_PKEY=1: it has 0: 0xffff";
    assert_refused(&Host::soft_roce(), &config(|c| c.pkey_index = 1), what, "give the index of one of those");
}

#[test]
fn settings_that_leave_no_gid() {
    let v4 = config(|c| {
        c.family = Some(ringway_dataplane::rdma::choice::Family::V4);
        c.hca = Some(RXE0.parse().unwrap());
    });
    let what = "GID 2, RoCE v2 fd00:77::1 on sr0: RINGWAY_IB_ADDR_FAMILY asks for IPv4";
    assert_refused(&Host::ipv6_only(), &v4, what, "RINGWAY_IB_ADDR_FAMILY");
    let v1 = config(|c| c.roce_version = Some(RoceVersion::V1));
    assert_refused(
        &Host::soft_roce(),
        &v1,
        "RINGWAY_IB_ROCE_VERSION asks for RoCE v1",
        "RINGWAY_IB_ROCE_VERSION",
    );
    let range = config(|c| c.range = Some("192.168.0.0/16".parse().unwrap()));
    let what = "10.77.0.1 on sr0: it is outside of RINGWAY_IB_ADDR_RANGE=192.168.0.0/16";
    assert_refused(&Host::soft_roce(), &range, what, "RINGWAY_IB_ADDR_RANGE");
}

#[test]
fn an_interface_in_another_network_namespace() {
    let host = Host::soft_roce().without("sys/class/net/sr0");
    let what = "GID 1, RoCE v2 10.77.0.1 on sr0: its interface is in another network namespace";
    assert_refused(&host, &only(RXE0), what, "use the host's network");
    let fixed = config(|c| {
        c.gid_index = Some(1);
        c.hca = Some(RXE0.parse().unwrap());
    });
    assert_refused(&host, &fixed, what, "use the host's network");
}

#[test]
fn a_port_without_any_gid() {
    let host = Host::soft_roce().without(&format!("{PORT0}/gids/"));
    assert_refused(&host, &only(RXE0), "port rxe0:1 has no GID", "an IP address");
}

#[test]
fn gids_of_different_kinds() {
    let v1 = Host::soft_roce()
        .with(&format!("{PORT1}/gid_attrs/types/1"), "IB/RoCE v1")
        .without(&format!("{PORT1}/gids/0"));
    let (mine, theirs) = disagreement((&Host::soft_roce(), &only(RXE0)), (&v1, &only(RXE1)));
    assert_told(
        &mine,
        "this side's GIDs are of RoCE v2, the peer's of RoCE v1",
        "set them alike on both sides",
    );
    assert_told(
        &theirs,
        "this side's GIDs are of RoCE v1, the peer's of RoCE v2",
        "set them alike on both sides",
    );
    // With both kinds on one side, the common one is found wherever it stands.
    let both = Host::soft_roce().gid(1, "IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:0a4d:0002", "sr1").gid(
        5,
        "RoCE v2",
        "0000:0000:0000:0000:0000:ffff:0a4d:0002",
        "sr1",
    );
    let (pairs, ..) = agreed((&both, &only(RXE1)), (&Host::soft_roce(), &only(RXE0)));
    assert_eq!(pairs[0].my_gid_index, Some(5));
}

#[test]
fn ipv6_on_one_side_only() {
    let (mine, theirs) = disagreement((&Host::ipv6_only(), &only(RXE0)), (&Host::soft_roce(), &only(RXE1)));
    assert_told(&mine, "this side's GIDs are IPv6, the peer's IPv4", "RINGWAY_IB_GID_INDEX");
    assert_told(&theirs, "this side's GIDs are IPv4, the peer's IPv6", "RINGWAY_IB_GID_INDEX");
}

#[test]
fn infiniband_on_one_side_and_ethernet_on_the_other() {
    let all = RdmaConfig::default();
    let (mine, _) = disagreement((&Host::infiniband(), &all), (&Host::soft_roce(), &all));
    assert_told(&mine, "this side's speaks InfiniBand, the peer's Ethernet", "RINGWAY_IB_HCA");
}

#[test]
fn no_address_on_one_side() {
    let bare = Host::soft_roce().without(&format!("{PORT1}/gids/1"));
    let (mine, theirs) = disagreement((&Host::soft_roce(), &only(RXE0)), (&bare, &only(RXE1)));
    assert_told(&mine, "the peer's GIDs are link-local, this side's are not", "an IP address");
    assert_told(&theirs, "this side's GIDs are link-local, the peer's are not", "an IP address");
}

#[test]
fn partitions_that_do_not_meet() {
    let other = Host::soft_roce().with(&format!("{PORT1}/pkeys/0"), "0x8001");
    let (mine, _) = disagreement((&Host::soft_roce(), &only(RXE0)), (&other, &only(RXE1)));
    assert_told(&mine, "in partition 0xffff, the peer's in 0x8001", "RINGWAY_IB_PKEY");
    let limited = Host::soft_roce().with(&format!("{PORT1}/pkeys/0"), "0x7fff");
    agreed((&Host::soft_roce(), &only(RXE0)), (&limited, &only(RXE1)));
}

#[test]
fn different_subnets_are_routed_by_v2_and_not_by_v1() {
    let far = |kind| Host::soft_roce().gid(1, kind, "0000:0000:0000:0000:0000:ffff:0a4e:0002", "sr1");
    let (pairs, ..) = agreed((&Host::soft_roce(), &only(RXE0)), (&far("RoCE v2"), &only(RXE1)));
    assert!(pairs[0].global);
    let v1 = config(|c| {
        c.roce_version = Some(RoceVersion::V1);
        c.hca = Some("rxe1".parse().unwrap());
    });
    let near = Host::soft_roce().with(&format!("{PORT1}/gid_attrs/types/1"), "IB/RoCE v1");
    let (mine, _) = disagreement((&near, &v1), (&far("IB/RoCE v1"), &v1));
    assert_told(&mine, "RoCE v1 reaches no other subnet", "use RoCE v2");
}

#[test]
fn mtus_that_differ() {
    let small = Host::soft_roce().with("sys/class/net/sr1/mtu", "1500");
    let (pairs, one, two) = agreed((&Host::soft_roce(), &only(RXE0)), (&small, &only(RXE1)));
    assert_eq!(pairs[0].mtu, Mtu::B1024);
    let remark = pairs[0].remark(&one, &two).expect("worth a remark");
    assert_told(&remark, "the MTU of rxe0:1 is 4096 here, that of the peer's rxe1:1 is 1024", "one MTU");
}

#[test]
fn slower_and_farther_ports_are_left_out_unless_named() {
    let slow = Host::soft_roce().with(&format!("{PORT1}/rate"), "2.5 Gb/sec (1X SDR)");
    let choice = choose(&slow.survey(), &RdmaConfig::default()).unwrap();
    assert_eq!((choice.rails.len(), choice.verdicts[1].why.as_str()), (1, "rxe0:1 is faster"));
    assert_eq!(choose(&slow.survey(), &only("rxe")).unwrap().rails.len(), 2);
    let nodes = Host::soft_roce()
        .with("sys/class/infiniband/rxe0/device/numa_node", "0")
        .with("sys/class/infiniband/rxe1/device/numa_node", "1");
    let near = |node| choose(&nodes.survey(), &config(|c| c.near_node = Some(node))).unwrap();
    assert_eq!(near(0).rails[0].device, "rxe0");
    assert_eq!((near(1).rails.len(), near(1).rails[0].device.as_str()), (1, "rxe1"));
    assert_eq!(near(1).verdicts[0].why, "rxe1:1 is nearer to the rank");
    assert_eq!(near(7).rails.len(), 2, "far from both");
    // What is next to the rank's accelerator goes before what is on its node.
    let named = config(|c| (c.near_node, c.near_devices) = (Some(0), vec!["rxe1".to_owned()]));
    let beside = choose(&nodes.survey(), &named).unwrap();
    assert_eq!((beside.rails.len(), beside.rails[0].device.as_str()), (1, "rxe1"));
    assert!(beside.verdicts[1].why.contains("next to the rank's accelerator"), "{}", beside.verdicts[1].why);
}
