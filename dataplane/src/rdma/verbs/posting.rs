//! Requests, and how they become the chains of C structures that a device takes.

use super::address::AddressHandle;
use super::error::PostError;
use super::sys;
use std::mem::{MaybeUninit, align_of, offset_of, size_of, zeroed};
use std::ptr;

/// Requests that one call into the device takes. Longer lists are posted by several.
pub(super) const POST_BATCH: usize = 16;

/// A piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Its address.
    pub addr: u64,
    /// Its bytes. On most devices 0 means none; on some, 2^31: leave an empty piece out.
    pub len: u32,
    /// The local key of the region that it lies in. Not looked at for inline data.
    pub lkey: u32,
}

// A list of ours is handed to the device as one of its own.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<sys::ibv_sge>() && align_of::<Sge>() == align_of::<sys::ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(sys::ibv_sge, addr));
    assert!(offset_of!(Sge, len) == offset_of!(sys::ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(sys::ibv_sge, lkey));
};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Fills the peer's next receive.
    Send,
    /// Fills the peer's next receive and gives it these 32 bits.
    SendWithImm(u32),
    /// Writes into the peer's memory, which the peer does not notice.
    Write {
        /// Address there.
        remote: u64,
        /// The peer's key of it.
        rkey: u32,
    },
    /// Writes into the peer's memory, then takes its next receive, unfilled, to give it these 32 bits.
    WriteWithImm {
        /// Address there.
        remote: u64,
        /// The peer's key of it.
        rkey: u32,
        /// The bits.
        imm: u32,
    },
    /// Reads from the peer's memory.
    Read {
        /// Address there.
        remote: u64,
        /// The peer's key of it.
        rkey: u32,
    },
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The peer's port.
    pub handle: &'a AddressHandle,
    /// The queue pair there.
    pub qp_num: u32,
    /// Its key: a datagram with another one is dropped.
    pub qkey: u32,
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The memory to do it with, in this order.
    pub sges: &'a [Sge],
    /// Whether success gives a completion. Failure always does.
    pub signaled: bool,
    /// Copies the bytes at once, so that they may be reused when the call returns; they need no registration.
    pub inline: bool,
    /// Starts only after all earlier reads are done.
    pub fence: bool,
    /// Makes the peer's completion a solicited one.
    pub solicited: bool,
    /// Where to, on a datagram queue pair. Not looked at on a connected one.
    pub to: Option<Destination<'a>>,
}

/// A request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The memory to fill, in this order.
    pub sges: &'a [Sge],
}

type PostSend = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_send_wr,
    *mut *mut sys::ibv_send_wr,
) -> std::ffi::c_int;

#[inline(always)]
fn send_wr(request: &SendRequest<'_>, next: *mut sys::ibv_send_wr) -> sys::ibv_send_wr {
    // SAFETY: a request is numbers, null pointers and unions of them, for which all zeros are valid.
    let mut wr: sys::ibv_send_wr = unsafe { zeroed() };
    wr.wr_id = request.wr_id;
    wr.next = next;
    // The device only reads the list: the header leaves its const away.
    wr.sg_list = request.sges.as_ptr().cast_mut().cast();
    wr.num_sge = request.sges.len() as i32;
    let flag = |on: bool, flag: sys::ibv_send_flags| if on { flag } else { 0 };
    wr.send_flags = flag(request.signaled, sys::IBV_SEND_SIGNALED)
        | flag(request.inline, sys::IBV_SEND_INLINE)
        | flag(request.fence, sys::IBV_SEND_FENCE)
        | flag(request.solicited, sys::IBV_SEND_SOLICITED);
    let (opcode, target, imm) = match request.op {
        SendOp::Send => (sys::IBV_WR_SEND, None, None),
        SendOp::SendWithImm(imm) => (sys::IBV_WR_SEND_WITH_IMM, None, Some(imm)),
        SendOp::Write { remote, rkey } => (sys::IBV_WR_RDMA_WRITE, Some((remote, rkey)), None),
        SendOp::WriteWithImm { remote, rkey, imm } => {
            (sys::IBV_WR_RDMA_WRITE_WITH_IMM, Some((remote, rkey)), Some(imm))
        }
        SendOp::Read { remote, rkey } => (sys::IBV_WR_RDMA_READ, Some((remote, rkey)), None),
    };
    wr.opcode = opcode;
    if let Some(imm) = imm {
        wr.__bindgen_anon_1.imm_data = imm.to_be();
    }
    if let Some((remote_addr, rkey)) = target {
        wr.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    } else if let Some(to) = &request.to {
        wr.wr.ud = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: to.handle.raw(),
            remote_qpn: to.qp_num,
            remote_qkey: to.qkey,
        };
    }
    wr
}

/// Posts one request to a send queue.
///
/// # Safety
/// As [`send`].
#[inline(always)]
pub(super) unsafe fn send_one(
    post: PostSend,
    qp: *mut sys::ibv_qp,
    request: &SendRequest<'_>,
) -> Result<(), PostError> {
    let mut wr = send_wr(request, ptr::null_mut());
    let mut refused = ptr::null_mut();
    // SAFETY: a chain of one; the rest is the caller's promise.
    match unsafe { post(qp, &mut wr, &mut refused) } {
        0 => Ok(()),
        errno => Err(PostError { call: "ibv_post_send", accepted: 0, errno: errno.abs() }),
    }
}

/// Posts a chain of requests to a send queue.
///
/// # Safety
/// `post` is the function of the queue pair's own context; the queue pair is alive; the memory and the handles of
/// the requests stay as the queue pair's contract says.
pub(super) unsafe fn send(
    post: PostSend,
    qp: *mut sys::ibv_qp,
    requests: &[SendRequest<'_>],
) -> Result<(), PostError> {
    let mut accepted = 0;
    for chunk in requests.chunks(POST_BATCH) {
        let mut chain = [const { MaybeUninit::<sys::ibv_send_wr>::uninit() }; POST_BATCH];
        let first: *mut sys::ibv_send_wr = chain.as_mut_ptr().cast();
        for (at, request) in chunk.iter().enumerate() {
            let next = if at + 1 < chunk.len() { first.wrapping_add(at + 1) } else { ptr::null_mut() };
            // SAFETY: a chunk is no longer than the chain.
            unsafe { first.add(at).write(send_wr(request, next)) };
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the chain is complete and ends with a null pointer; the rest is the caller's promise.
        let errno = unsafe { post(qp, first, &mut refused) };
        if errno != 0 {
            accepted += position(refused, first, chunk.len());
            return Err(PostError { call: "ibv_post_send", accepted, errno: errno.abs() });
        }
        accepted += chunk.len();
    }
    Ok(())
}

/// Posts a chain of receives with `post`, which gives a chain to a queue and says which request was refused.
///
/// # Safety
/// The queue that `post` gives the chain to is alive, and the memory of the requests stays as its contract says.
pub(super) unsafe fn receive(
    call: &'static str,
    requests: &[ReceiveRequest<'_>],
    post: impl Fn(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
) -> Result<(), PostError> {
    let mut accepted = 0;
    for chunk in requests.chunks(POST_BATCH) {
        let mut chain = [const { MaybeUninit::<sys::ibv_recv_wr>::uninit() }; POST_BATCH];
        let first: *mut sys::ibv_recv_wr = chain.as_mut_ptr().cast();
        for (at, request) in chunk.iter().enumerate() {
            let wr = sys::ibv_recv_wr {
                wr_id: request.wr_id,
                next: if at + 1 < chunk.len() { first.wrapping_add(at + 1) } else { ptr::null_mut() },
                sg_list: request.sges.as_ptr().cast_mut().cast(),
                num_sge: request.sges.len() as i32,
            };
            // SAFETY: a chunk is no longer than the chain.
            unsafe { first.add(at).write(wr) };
        }
        let mut refused = ptr::null_mut();
        let errno = post(first, &mut refused);
        if errno != 0 {
            accepted += position(refused, first, chunk.len());
            return Err(PostError { call, accepted, errno: errno.abs() });
        }
        accepted += chunk.len();
    }
    Ok(())
}

/// Which request of a chain was refused.
fn position<T>(refused: *mut T, first: *mut T, len: usize) -> usize {
    // A provider that does not say refused the first: nothing of a chain after that was taken.
    let bytes = refused.addr().saturating_sub(first.addr());
    let at = bytes / size_of::<T>();
    if at < len { at } else { 0 }
}
