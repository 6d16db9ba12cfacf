//! Rows of networks, and how they are driven.

use super::{Setting, row};
use crate::settings::kind::Kind;
use ringway_topology::model::reach::Reach;

/// In order.
pub(super) const ROWS: &[Setting] = &[
    // Which network, and how it is driven.
    row(
        "RINGWAY_SOCKET_IFNAME",
        Kind::Interfaces,
        None,
        "",
        "Which network interfaces carry tensors. Unset, a real interface that reaches the peer is preferred to \
         loopback, docker and bridges.",
    ),
    row(
        "RINGWAY_SOCKET_FAMILY",
        Kind::OneOf(&["AF_INET", "AF_INET6"]),
        None,
        "",
        "Use only IPv4 or only IPv6 addresses. Unset, either.",
    ),
    row(
        "RINGWAY_NET",
        Kind::SomeOf(&["shm", "rdma", "tcp", "uring", "epoll"]),
        Some("auto"),
        "",
        "Which transports may be used; tcp stands for both of its drivers. With a list, a peer that none of them \
         reaches is an error.",
    ),
    row(
        "RINGWAY_IO_DRIVER",
        Kind::OneOf(&["auto", "uring", "epoll"]),
        Some("auto"),
        "",
        "How sockets are driven: auto takes io_uring where the kernel allows it and epoll elsewhere; uring fails \
         where it is not allowed.",
    ),
    row(
        "RINGWAY_CONGESTION_CONTROL",
        Kind::Text,
        Some("auto"),
        "",
        "TCP congestion control of data connections: auto picks one fit for loopback between ranks of one host \
         and leaves the system's choice elsewhere, system never changes it, any other word is the kernel's name \
         of one (reno, cubic, bbr).",
    ),
    row(
        "RINGWAY_SHM",
        Kind::OneOf(&["require", "prefer", "off"]),
        Some("prefer"),
        "",
        "Whether processes of one host move tensors by shared memory: prefer uses it between those that reach each \
         other so (one user, one network namespace); require makes it an error where they do not; off leaves them \
         to the other transports (NCCL_SHM_DISABLE=1).",
    ),
    row(
        "RINGWAY_SHM_CMA",
        Kind::Switch,
        Some("off"),
        "",
        "Whether large messages in shared memory that are not of Communicator::alloc are read by process_vm_readv \
         (cross-memory attach), where that is permitted: one copy by the receiver, and the sender need not take part. \
         Two copies through a queue were faster at every length measured. For all ranks of a host alike.",
    ),
    // How RDMA is used, named as in NCCL.
    row(
        "RINGWAY_RDMA",
        Kind::OneOf(&["require", "prefer", "off"]),
        Some("prefer"),
        "",
        "Whether tensors travel by RDMA: prefer uses it with the peers that can, and TCP with the others, but \
         shared memory within a host; require makes it an error where it cannot be used, within a host too.",
    ),
    row(
        "RINGWAY_IB_HCA",
        Kind::Hcas,
        None,
        "",
        "Which RDMA devices and ports carry tensors. Unset, the fastest ones that work, near the rank's NUMA node \
         first.",
    ),
    row(
        "RINGWAY_IB_GID_INDEX",
        Kind::Index { max: 255 },
        Some("auto"),
        "",
        "The GID that RoCE uses, by its index, on every port. auto finds one by type, address family and the subnet \
         shared with the peer.",
    ),
    row(
        "RINGWAY_IB_ADDR_FAMILY",
        Kind::OneOf(&["AF_INET", "AF_INET6"]),
        None,
        "",
        "Use only RoCE GIDs that are IPv4 or only those that are IPv6 addresses. Unset, either, IPv4 first.",
    ),
    row(
        "RINGWAY_IB_ADDR_RANGE",
        Kind::AddressRange,
        None,
        "",
        "Use only RoCE GIDs within this range of addresses.",
    ),
    row(
        "RINGWAY_IB_ROCE_VERSION",
        Kind::OneOf(&["1", "2"]),
        None,
        "",
        "Use only this version of RoCE. Unset, version 2 where both sides have it.",
    ),
    row(
        "RINGWAY_IB_TC",
        Kind::Number { min: 0, max: 255 },
        Some("0"),
        "",
        "Traffic class of RDMA packets: on RoCE the byte that holds DSCP and ECN, as the switches' lossless queue wants it.",
    ),
    row("RINGWAY_IB_SL", Kind::Number { min: 0, max: 15 }, Some("0"), "", "InfiniBand's service level."),
    row(
        "RINGWAY_IB_PKEY",
        Kind::Number { min: 0, max: 255 },
        Some("0"),
        "",
        "The partition key, by its index in the port's table.",
    ),
    row(
        "RINGWAY_IB_TIMEOUT",
        Kind::Number { min: 1, max: 22 },
        Some("16"),
        "",
        "How long RDMA waits before it sends again: 4.096 us times two to this power (16: 0.27 s). NCCL's 20 takes over \
         half a minute to give up a dead path.",
    ),
    row(
        "RINGWAY_IB_RETRY_CNT",
        Kind::Number { min: 0, max: 7 },
        Some("7"),
        "",
        "How often RDMA sends again before a connection counts as broken. 7 counts as 6: soft-RoCE takes 7 for \
         ever.",
    ),
    row(
        "RINGWAY_IB_PINNED_BYTES",
        Kind::AutoOrNumber { min: 1 << 20, max: 1 << 46 },
        Some("auto"),
        "bytes",
        "How much lent memory RDMA keeps pinned at a time, counted once per device. auto: 16 GiB, or what the system \
         allows where it refuses more.",
    ),
    row(
        "RINGWAY_NET_GDR_LEVEL",
        Kind::OneOf(&Reach::WORDS),
        Some("PXB"),
        "",
        "How far an RDMA device may be from a GPU to read and write its memory by itself: never (LOC), behind the same PCI \
         switch (PIX), behind several (PXB), on the same NUMA node (PHB), anywhere (SYS). Otherwise bytes pass through the \
         host's memory.",
    ),
];
