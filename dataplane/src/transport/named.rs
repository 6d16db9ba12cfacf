//! A decorator that gives a transport another name, on this side and towards its peers, so that one endpoint can hold two of a kind, such as one per NIC.

use super::caps::Caps;
use super::contract::Transport;
use super::forward::forward;

/// A transport under another name.
#[derive(Debug)]
pub struct Named<T> {
    inner: T,
    name: &'static str,
}

impl<T: Transport> Named<T> {
    /// `inner`, called `name`.
    pub fn new(inner: T, name: &'static str) -> Named<T> {
        Named { inner, name }
    }
}

impl<T: Transport> Transport for Named<T> {
    fn caps(&self) -> Caps {
        Caps { name: self.name, speaks: self.name, ..self.inner.caps() }
    }

    forward!(inner: address, register, deregister, reaches_devices, keep_registered,
        release_registered, show, view, has_unsent, shares_memory, connect, close, post, send_now, take_now, cancel, note, poll,
        prepare_sleep, sleep_fd, waker, next_timer_ms, retire, leave, why, copies, pending);
}
