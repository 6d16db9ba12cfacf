//! Completion queues, and the channels that wake a sleeper when one has something.

use super::VerbsError;
use super::context::{Context, set_nonblocking};
use super::error::last_errno;
use super::status::WorkCompletion;
use super::sys;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

/// Completions that one call into the device takes. Longer polls are made of several.
pub(super) const POLL_BATCH: usize = 16;

/// Wakes a sleeper: its file is readable when a queue on it that asked for notice has completions.
pub struct CompletionChannel {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: every verb may be called from any thread (I5).
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("context", &self.context).finish_non_exhaustive()
    }
}

impl CompletionChannel {
    /// Makes a channel.
    ///
    /// # Errors
    /// When the process has no more files.
    pub fn new(context: &Arc<Context>) -> Result<Arc<CompletionChannel>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { context.sys().ibv_create_comp_channel(context.raw()) };
        let raw = context.made("ibv_create_comp_channel", raw)?;
        let channel = CompletionChannel { raw, context: Arc::clone(context) };
        set_nonblocking(channel.fd())
            .map_err(|errno| context.error("fcntl of a completion channel", errno))?;
        Ok(Arc::new(channel))
    }

    /// Readable when a queue that asked for notice has something. Level-triggered until [drained](Self::drain).
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the file is open as long as the channel (I1).
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// Takes and acknowledges the events of all queues on this channel; how many there were. Does not wait.
    /// Afterwards, ask each queue for notice again, and then poll it once more before sleeping: a completion may
    /// have come in between.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn drain(&self) -> Result<usize, VerbsError> {
        let sys = self.context.sys();
        // Acknowledging takes a lock, so events of one queue in a row are acknowledged together.
        let (mut total, mut last, mut pending) = (0, ptr::null_mut(), 0);
        let result = loop {
            let (mut queue, mut user) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is alive, both pointers are writable for the call, and its file does not block.
            if unsafe { sys.ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut user) } != 0 {
                break match last_errno() {
                    libc::EAGAIN | libc::EINTR => Ok(()),
                    errno => Err(self.context.error("ibv_get_cq_event", errno)),
                };
            }
            if queue != last {
                self.acknowledge(last, pending);
                (last, pending) = (queue, 0);
            }
            pending += 1;
            total += 1;
        };
        self.acknowledge(last, pending);
        result.map(|()| total)
    }

    fn acknowledge(&self, queue: *mut sys::ibv_cq, events: u32) {
        if events > 0 {
            // SAFETY: the queue of an event lives until that is acknowledged, as destroying it waits (I3).
            unsafe { self.context.sys().ibv_ack_cq_events(queue, events) };
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: made once and taken down once (I1); its queues held it and are gone (I2).
        let returned = unsafe { self.context.sys().ibv_destroy_comp_channel(self.raw.as_ptr()) };
        self.context.taken_down("ibv_destroy_comp_channel", returned);
    }
}

/// Where requests end.
pub struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    handle: u32,
    /// Entries that it holds; the lock orders resizing.
    entries: Mutex<u32>,
    context: Arc<Context>,
    channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: every verb may be called from any thread (I5).
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("CompletionQueue");
        f.field("context", &self.context).field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl CompletionQueue {
    /// Makes a queue of at least `entries`, which gives notice through `channel` if there is one. More completions
    /// than entries break it: size it for all requests of the queue pairs on it.
    ///
    /// # Errors
    /// When the device has no more queues or none so long, or the channel is of another context (I4).
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        const CALL: &str = "ibv_create_cq";
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context, context)) {
            return Err(context.refuse(CALL, "the completion channel belongs to another context"));
        }
        let wanted = i32::try_from(entries)
            .map_err(|_| context.refuse(CALL, format!("{entries} entries are more than any device has")))?;
        let on = channel.map_or(ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: context and channel are alive.
        let raw = unsafe { context.sys().ibv_create_cq(context.raw(), wanted, ptr::null_mut(), on, 0) };
        let raw = context.made(CALL, raw)?;
        // SAFETY: the queue was made just now.
        let (handle, granted) = unsafe { (raw.as_ref().handle, raw.as_ref().cqe) };
        let entries = Mutex::new(u32::try_from(granted).unwrap_or(entries));
        let (context, channel) = (Arc::clone(context), channel.map(Arc::clone));
        Ok(Arc::new(CompletionQueue { raw, handle, entries, context, channel }))
    }

    /// Its number in this context, as events name it.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Entries that it holds.
    pub fn entries(&self) -> u32 {
        *self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel that it gives notice through.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Takes completions, oldest first, into `out`; how many. Fewer than `out` holds mean that the queue is empty.
    /// Does not wait and allocates nothing.
    ///
    /// # Errors
    /// When the queue has overflowed or its device is gone.
    #[inline]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut batch = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; POLL_BATCH];
        let want = out.len().min(POLL_BATCH);
        // Most polls find nothing.
        match self.ask(&mut batch[..want])? {
            0 => Ok(0),
            got => self.take(got, &mut batch, out),
        }
    }

    /// Lets the device fill the batch; how many it did.
    #[inline]
    fn ask(&self, batch: &mut [MaybeUninit<sys::ibv_wc>]) -> Result<usize, VerbsError> {
        let poll = self.context.ops().poll_cq.expect("every device has it");
        // SAFETY: the queue is alive (I1), and the batch has room for so many completions.
        let got = unsafe { poll(self.raw.as_ptr(), batch.len() as i32, batch.as_mut_ptr().cast()) };
        // A number below zero is the provider's own and says nothing to people.
        match usize::try_from(got) {
            Ok(got) => Ok(got.min(batch.len())),
            Err(_) => Err(self.context.error("ibv_poll_cq", libc::EIO)),
        }
    }

    /// Takes the first `got` of the batch, which the device has filled, and what more there is.
    fn take(
        &self,
        mut got: usize,
        batch: &mut [MaybeUninit<sys::ibv_wc>; POLL_BATCH],
        out: &mut [WorkCompletion],
    ) -> Result<usize, VerbsError> {
        let mut taken = 0;
        loop {
            for (slot, wc) in out[taken..].iter_mut().zip(&batch[..got]) {
                // SAFETY: the device filled the first `got` of the batch.
                *slot = WorkCompletion::of(unsafe { wc.assume_init_ref() });
            }
            taken += got;
            if got < POLL_BATCH || taken == out.len() {
                return Ok(taken);
            }
            let want = (out.len() - taken).min(POLL_BATCH);
            got = self.ask(&mut batch[..want])?;
        }
    }

    /// Asks for one notice on the channel at the next completion, or at the next that is solicited or in error.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let request = self.context.ops().req_notify_cq.expect("every device has it");
        // SAFETY: the queue is alive (I1).
        let returned = unsafe { request(self.raw.as_ptr(), i32::from(solicited_only)) };
        self.context.check("ibv_req_notify_cq", returned)
    }

    /// Makes room for at least `entries`, keeping what is in the queue.
    ///
    /// # Errors
    /// When the device cannot: the queue is as before then.
    pub fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        const CALL: &str = "ibv_resize_cq";
        let wanted = i32::try_from(entries).map_err(|_| self.context.error(CALL, libc::EINVAL))?;
        let mut known = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is alive (I1), and the lock keeps a second resize out.
        let returned = unsafe { self.context.sys().ibv_resize_cq(self.raw.as_ptr(), wanted) };
        self.context.check(CALL, returned)?;
        // SAFETY: only a resize writes this field, and the lock keeps others out.
        *known = u32::try_from(unsafe { self.raw.as_ref().cqe }).unwrap_or(entries);
        Ok(())
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made once and taken down once (I1); its queue pairs held it and are gone (I2).
        let returned = unsafe { self.context.sys().ibv_destroy_cq(self.raw.as_ptr()) };
        self.context.taken_down("ibv_destroy_cq", returned);
    }
}
