//! Sleeping until a device or another thread has something to tell.
#![forbid(unsafe_code)]

use super::device::Device;
use super::verbs::VerbsError;
use crate::transport::Waker;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a thread sleeps on: all devices' completions and events, and the waker.
pub(super) struct Watch {
    epoll: OwnedFd,
    pub(super) waker: Waker,
    /// Notices were asked for, and may have come.
    armed: bool,
}

impl Watch {
    /// `also` rouses the sleeper as well.
    pub(super) fn new(devices: &[Device], also: &Waker) -> std::io::Result<Watch> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        let add =
            |fd: BorrowedFd<'_>| epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        add(waker.fd())?;
        add(also.fd())?;
        for device in devices {
            add(device.channel.fd())?;
            add(device.context.async_fd())?;
        }
        Ok(Watch { epoll, waker, armed: false })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Asks for notice of the next completions. They must be polled once more before the sleep.
    pub(super) fn arm(&mut self, devices: &[Device]) -> Result<(), VerbsError> {
        self.armed = true;
        devices.iter().try_for_each(|d| d.completions.request_notify(false))
    }

    /// After a sleep: takes the notices away. `true`: there was one to ask for.
    pub(super) fn rise(&mut self, devices: &[Device]) -> bool {
        if !std::mem::take(&mut self.armed) {
            return false;
        }
        for device in devices {
            if let Err(why) = device.channel.drain() {
                tracing::debug!("{why}");
            }
        }
        true
    }
}
