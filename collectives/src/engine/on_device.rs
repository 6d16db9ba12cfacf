//! Calls over memory of devices, which no processor touches: those that only move. The transport's network cards read and
//! write it (`dataplane::memory::device`), so the schedules, stamps, losses and records of all calls are theirs too.
//!
//! All ranks of such a call have their memory on devices, each registered with the transport before and held until its end:
//! who calls agrees on that with the others first.

#![forbid(unsafe_code)]

use super::blocking::{Memory, request};
use super::communicator::Communicator;
use super::core::CallRegions;
use super::error::CollectiveError;
use super::p2p::message;
use super::plan::{Request, What};
use crate::schedule::Collective;
use ringway_dataplane::memory::{Element, Region, RegionId};
use ringway_dataplane::transport::RegisterError;

type Result<T> = std::result::Result<T, CollectiveError>;

impl Communicator {
    /// By which devices of this rank memory of devices gets to another, or why it does not.
    pub(crate) fn reaches_devices(&self, rank: u32) -> std::result::Result<Vec<String>, String> {
        self.owner.lock().transport.reaches_devices(self.members[rank as usize].peer)
    }

    /// Registers memory of a device and holds it, until [`Self::release_registered`].
    pub(crate) fn keep_registered(&self, region: &Region) -> std::result::Result<(), RegisterError> {
        self.owner.lock().transport.keep_registered(region)
    }

    /// Takes [`Self::keep_registered`] back.
    pub(crate) fn release_registered(&self, region: RegionId) {
        self.owner.lock().transport.release_registered(region);
    }

    /// Tells a rank one byte and hears one of it, each with a tag of its own; neither side waits for the other to have heard.
    pub(crate) fn swap(&self, mine: u8, with: u32, (send, receive): (u32, u32)) -> Result<u8> {
        let (said, mut heard) = ([mine], [0u8]);
        let sends = message::<u8>(What::Send { to: with, tag: send }, 1);
        let receives = message::<u8>(What::Receive { from: with, tag: receive }, 1);
        let (said, hears) = ((&sends, Memory::Read(&said)), (&receives, Memory::Write(&mut heard)));
        self.run_pair("sendrecv", said, hears)?;
        Ok(heard[0])
    }

    /// As [`Communicator::broadcast`].
    pub(crate) fn broadcast_on_device<T: Element>(&self, region: Region, root: u32) -> Result<()> {
        let count = region.len() / size_of::<T>();
        let request = Request { root, in_place: true, ..request::<T>(Collective::Broadcast, count) };
        self.check_root("broadcast", &request)?;
        self.run_on_device("broadcast", &request, Some(region), None)
    }

    /// As [`Communicator::all_gather_in_place`].
    pub(crate) fn all_gather_on_device<T: Element>(&self, region: Region) -> Result<()> {
        let of = |count| Request { in_place: true, ..request::<T>(Collective::AllGather, count) };
        let len = region.len() / size_of::<T>();
        let request = of(self.block("all_gather", &of(len), len)?);
        self.run_on_device("all_gather", &request, Some(region), None)
    }

    /// As [`Communicator::send`].
    pub(crate) fn send_on_device<T: Element>(&self, region: Region, to: u32, tag: u32) -> Result<()> {
        let request = message::<T>(What::Send { to, tag }, region.len() / size_of::<T>());
        self.check_message("send", "destination", &request, to, tag)?;
        self.run_on_device("send", &request, Some(region), None)
    }

    /// As [`Communicator::recv`].
    pub(crate) fn recv_on_device<T: Element>(&self, region: Region, from: u32, tag: u32) -> Result<()> {
        let request = message::<T>(What::Receive { from, tag }, region.len() / size_of::<T>());
        self.check_message("recv", "source", &request, from, tag)?;
        self.run_on_device("recv", &request, None, Some(region))
    }

    /// Makes a call to its end. By R1 the regions have all leases home then.
    fn run_on_device(
        &self,
        name: &'static str,
        request: &Request,
        mut input: Option<Region>,
        mut output: Option<Region>,
    ) -> Result<()> {
        let mut core = self.owner.lock();
        let regions = CallRegions { input: &mut input, output: &mut output };
        let begun = core.begin(self.index, name, request, regions, false);
        self.owner.nudge(&core);
        let regions = CallRegions { input: &mut input, output: &mut output };
        let (core, result) = self.end(core, begun, regions);
        debug_assert!([&input, &output].into_iter().flatten().all(|region| region.outstanding() == 0));
        self.answer(core, result)
    }
}
