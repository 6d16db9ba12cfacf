//! Messages between two ranks.
//!
//! The k-th send to a rank with a tag meets the k-th receive from there with that tag. Both sides name the same type
//! and count. Tags do not hold each other up. A send may return before it is received, or not: two ranks that both
//! send first may wait for each other for ever, which is what [`Communicator::sendrecv`] is for.

#![forbid(unsafe_code)]

use super::blocking::{Memory, request};
use super::communicator::Communicator;
use super::core::MAX_TAG;
use super::error::{CollectiveError, InvalidCall};
use super::plan::{Request, What};
use crate::schedule::Collective;
use bytemuck::{cast_slice, cast_slice_mut};
use ringway_dataplane::memory::Element;

type Result<T> = std::result::Result<T, CollectiveError>;

impl Communicator {
    /// Sends `buffer` to rank `to`, with a tag of at most [`MAX_TAG`].
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn send<T: Element>(&self, buffer: &[T], to: u32, tag: u32) -> Result<()> {
        let request = message::<T>(What::Send { to, tag }, buffer.len());
        self.check_message("send", "destination", &request, to, tag)?;
        let mut core = self.owner.lock();
        if core.send_at_once(self.index, &request, cast_slice(buffer)) {
            self.owner.see_off_at_once(&mut core, self.index);
            return Ok(());
        }
        drop(core);
        self.run("send", &request, Memory::Read(cast_slice(buffer)), Memory::Nothing)
    }

    /// Receives `buffer.len()` elements from rank `from`, with a tag of at most [`MAX_TAG`].
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn recv<T: Element>(&self, buffer: &mut [T], from: u32, tag: u32) -> Result<()> {
        let request = message::<T>(What::Receive { from, tag }, buffer.len());
        self.check_message("recv", "source", &request, from, tag)?;
        self.run("recv", &request, Memory::Nothing, Memory::Write(cast_slice_mut(buffer)))
    }

    /// Sends `output` to rank `to` and receives `input` from rank `from` at the same time, both with `tag`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn sendrecv<T: Element>(
        &self,
        output: &[T],
        to: u32,
        input: &mut [T],
        from: u32,
        tag: u32,
    ) -> Result<()> {
        let send = message::<T>(What::Send { to, tag }, output.len());
        let receive = message::<T>(What::Receive { from, tag }, input.len());
        self.check_message("sendrecv", "destination", &send, to, tag)?;
        self.check_message("sendrecv", "source", &receive, from, tag)?;
        self.run_pair(
            "sendrecv",
            (&send, Memory::Read(cast_slice(output))),
            (&receive, Memory::Write(cast_slice_mut(input))),
        )
    }

    #[inline]
    pub(super) fn check_message(
        &self,
        name: &'static str,
        what: &'static str,
        request: &Request,
        rank: u32,
        tag: u32,
    ) -> Result<()> {
        match self.wrong_message(what, rank, tag) {
            Some(why) => Err(self.refuse(name, request, why)),
            None => Ok(()),
        }
    }

    /// What is wrong with a message to or from a rank, if something is.
    #[inline]
    pub(super) fn wrong_message(&self, what: &'static str, rank: u32, tag: u32) -> Option<InvalidCall> {
        let size = self.size();
        Some(if rank >= size {
            InvalidCall::NoSuchRank { what, rank, size }
        } else if rank == self.rank {
            InvalidCall::WithItself
        } else if tag > MAX_TAG {
            InvalidCall::TagTooLarge { tag, max: MAX_TAG }
        } else {
            return None;
        })
    }
}

pub(super) fn message<T: Element>(what: What, count: usize) -> Request {
    Request { what, ..request::<T>(Collective::Barrier, count) }
}
