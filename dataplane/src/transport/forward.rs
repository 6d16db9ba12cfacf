//! For decorators: the calls of [`Transport`](super::Transport) that they pass on unchanged.

/// Writes the named methods of `impl Transport`, passing each on to the field `$inner`.
macro_rules! forward {
    ($inner:tt: $($method:ident),+ $(,)?) => {
        $(crate::transport::forward::forward! { @$method $inner })+
    };
    (@caps $inner:tt) => {
        fn caps(&self) -> crate::transport::Caps { self.$inner.caps() }
    };
    (@address $inner:tt) => {
        fn address(&self) -> crate::transport::Address { self.$inner.address() }
    };
    (@register $inner:tt) => {
        fn register(
            &mut self,
            region: &crate::memory::Region,
        ) -> Result<crate::transport::RegionKey, crate::transport::RegisterError> {
            self.$inner.register(region)
        }
    };
    (@deregister $inner:tt) => {
        fn deregister(&mut self, region: crate::memory::RegionId) { self.$inner.deregister(region); }
    };
    (@reaches_devices $inner:tt) => {
        fn reaches_devices(&self, with: crate::transport::Peer) -> Result<Vec<String>, String> {
            self.$inner.reaches_devices(with)
        }
    };
    (@keep_registered $inner:tt) => {
        fn keep_registered(
            &mut self,
            region: &crate::memory::Region,
        ) -> Result<(), crate::transport::RegisterError> {
            self.$inner.keep_registered(region)
        }
    };
    (@release_registered $inner:tt) => {
        fn release_registered(&mut self, region: crate::memory::RegionId) {
            self.$inner.release_registered(region);
        }
    };
    (@connect $inner:tt) => {
        fn connect(
            &mut self,
            peer: crate::transport::Peer,
            to: &crate::transport::Address,
        ) -> Result<(), crate::transport::ConnectError> {
            self.$inner.connect(peer, to)
        }
    };
    (@close $inner:tt) => {
        fn close(&mut self, peer: crate::transport::Peer, why: crate::transport::Cause) {
            self.$inner.close(peer, why);
        }
    };
    (@post $inner:tt) => {
        fn post(
            &mut self,
            id: crate::transport::OpId,
            op: crate::transport::Op,
        ) -> Result<(), (crate::transport::PostError, crate::transport::Op)> {
            self.$inner.post(id, op)
        }
    };
    (@send_now $inner:tt) => {
        fn send_now(
            &mut self,
            to: crate::transport::Peer,
            tag: crate::transport::Tag,
            stamp: &crate::transport::Stamp,
            bytes: &[u8],
        ) -> bool {
            self.$inner.send_now(to, tag, stamp, bytes)
        }
    };
    (@take_now $inner:tt) => {
        fn take_now(
            &mut self,
            from: crate::transport::Peer,
            tag: crate::transport::Tag,
            expected: (&crate::transport::Stamp, usize),
            looks: u32,
            take: &mut dyn FnMut(&[u8]),
        ) -> crate::transport::Found {
            self.$inner.take_now(from, tag, expected, looks, take)
        }
    };
    (@shares_memory $inner:tt) => {
        fn shares_memory(&self, with: crate::transport::Peer) -> bool { self.$inner.shares_memory(with) }
    };
    (@cancel $inner:tt) => {
        fn cancel(&mut self, id: crate::transport::OpId) { self.$inner.cancel(id); }
    };
    (@note $inner:tt) => {
        fn note(
            &mut self,
            to: crate::transport::Peer,
            note: &crate::transport::Note,
        ) -> Result<(), crate::transport::PostError> {
            self.$inner.note(to, note)
        }
    };
    (@show $inner:tt) => {
        fn show(
            &mut self,
            to: crate::transport::Peer,
            bytes: &crate::memory::ReadLease,
        ) -> Option<crate::transport::Sight> {
            self.$inner.show(to, bytes)
        }
    };
    (@view $inner:tt) => {
        fn view(
            &mut self,
            from: crate::transport::Peer,
            sight: crate::transport::Sight,
        ) -> Option<crate::memory::ForeignBytes> {
            self.$inner.view(from, sight)
        }
    };
    (@poll $inner:tt) => {
        fn poll(&mut self, out: &mut Vec<crate::transport::Event>) -> bool { self.$inner.poll(out) }
    };
    (@has_unsent $inner:tt) => {
        fn has_unsent(&self) -> bool { self.$inner.has_unsent() }
    };
    (@prepare_sleep $inner:tt) => {
        fn prepare_sleep(&mut self) -> bool { self.$inner.prepare_sleep() }
    };
    (@sleep_fd $inner:tt) => {
        fn sleep_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> { self.$inner.sleep_fd() }
    };
    (@waker $inner:tt) => {
        fn waker(&self) -> crate::transport::Waker { self.$inner.waker() }
    };
    (@next_timer_ms $inner:tt) => {
        fn next_timer_ms(&self) -> Option<u64> { self.$inner.next_timer_ms() }
    };
    (@retire $inner:tt) => {
        fn retire(&mut self, group: u32) { self.$inner.retire(group); }
    };
    (@leave $inner:tt) => {
        fn leave(&mut self, linger_ms: u64) { self.$inner.leave(linger_ms); }
    };
    (@why $inner:tt) => {
        fn why(&self, peer: crate::transport::Peer) -> Option<String> { self.$inner.why(peer) }
    };
    (@copies $inner:tt) => {
        fn copies(&self) -> crate::transport::Copies { self.$inner.copies() }
    };
    (@pending $inner:tt) => {
        fn pending(&self, peer: crate::transport::Peer) -> (usize, usize) { self.$inner.pending(peer) }
    };
}

pub(crate) use forward;
