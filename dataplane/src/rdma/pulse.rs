//! Noticing peers, ports and devices that are gone while nothing of ours fails by itself.
//!
//! A side that only receives hears nothing from a dead peer. So its device is asked for a sign of life: an empty write,
//! which the peer's device acknowledges without its process, a stopped one's too.
#![forbid(unsafe_code)]

use super::connection::Verdict;
use super::links::{Channel, Stage};
use super::outgoing::ANNOUNCE_MS;
use super::transport::RdmaTransport;
use super::verbs::{AsyncEvent, AsyncEventKind, AsyncSubject};
use crate::transport::{Cause, CauseKind};

/// Silence after which a peer that something is expected of is asked for a sign of life.
pub(super) const PULSE_MS: u64 = 500;
/// The same for a connected peer of which nothing is expected now.
pub(super) const IDLE_PULSE_MS: u64 = 4_000;
/// A peer that does not confirm in so long that it leaves withdrawn memory alone is given up.
pub(super) const WITHDRAW_MS: u64 = 2_000;
/// A port that is down for less costs no connection.
pub(super) const PORT_GRACE_MS: u64 = 1_000;

fn pulse_due_ms(channel: &Channel) -> u64 {
    channel.sign_ms + if channel.matcher.expects() { PULSE_MS } else { IDLE_PULSE_MS }
}

impl RdmaTransport {
    /// Looks at what time may have brought.
    pub(super) fn feel_pulse(&mut self) {
        for at in 0..self.links.len() as u32 {
            let now_ms = self.now_ms;
            let Some(channel) = &mut self.links[at as usize].channel else { continue };
            if let Stage::Up(connection) = &mut channel.stage
                && connection.deadline_ms(now_ms).is_some()
            {
                let verdict = match connection.look_at_deadlines(now_ms) {
                    Verdict::On => connection.settle(&self.retired, &mut channel.matcher, &mut self.done),
                    over => over,
                };
                self.conclude(at, verdict);
            }
            let Some(channel) = &mut self.links[at as usize].channel else { continue };
            let withdrawing = channel.matcher.is_withdrawing();
            let since = *channel.withdrawing_ms.get_or_insert(now_ms);
            if !withdrawing {
                channel.withdrawing_ms = None;
            } else if now_ms >= since + WITHDRAW_MS {
                let evidence = format!(
                    "it has not confirmed within {WITHDRAW_MS} ms that its device leaves a withdrawn receive alone"
                );
                self.lose(at, Cause::new(CauseKind::Unreachable, evidence));
                continue;
            }
            let due_ms = pulse_due_ms(channel);
            let Stage::Up(connection) = &mut channel.stage else { continue };
            if now_ms >= due_ms {
                channel.sign_ms = now_ms;
                if let Err(cause) = connection.pulse() {
                    self.lose(at, cause);
                }
            }
        }
        self.look_at_ports();
    }

    /// When [`Self::feel_pulse`] or [`Self::announce`] must come next, if there are connections.
    pub(super) fn pulse_due_ms(&self) -> Option<u64> {
        let channels = self.links.iter().filter_map(|l| l.channel.as_ref());
        let pulses = channels.filter(|c| c.is_up()).map(|c| {
            let withdrawn = c.withdrawing_ms.map_or(u64::MAX, |since| since + WITHDRAW_MS);
            let failing = match &c.stage {
                Stage::Up(connection) => connection.deadline_ms(self.now_ms),
                Stage::None | Stage::Meeting(..) => None,
            };
            let unsaid = c.unsaid_ms.map_or(u64::MAX, |since| since + ANNOUNCE_MS);
            pulse_due_ms(c).min(withdrawn).min(unsaid).min(failing.unwrap_or(u64::MAX))
        });
        pulses.chain(self.down.iter().map(|(_, since)| since + PORT_GRACE_MS)).min()
    }

    /// Takes what the devices tell by themselves.
    pub(super) fn hear_devices(&mut self) {
        for d in 0..self.devices.len() {
            self.devices[d].mend();
            loop {
                let event = match self.devices[d].context.next_async_event() {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    Err(why) => {
                        self.devices[d].broken.get_or_insert(why.to_string());
                        break;
                    }
                };
                tracing::debug!("{}: {event}", self.devices[d].rail.device);
                self.take_event(d, &event);
            }
        }
        self.drop_broken();
    }

    fn take_event(&mut self, d: usize, event: &AsyncEvent) {
        let device = &mut self.devices[d];
        let here = event.subject == AsyncSubject::Port(device.rail.port);
        match event.kind {
            AsyncEventKind::PortError if here => {
                self.down.retain(|(of, _)| *of != d);
                self.down.push((d, self.now_ms));
            }
            AsyncEventKind::PortActive if here => self.down.retain(|(of, _)| *of != d),
            AsyncEventKind::DeviceFatal | AsyncEventKind::CompletionQueueError => {
                device.broken.get_or_insert(event.to_string());
            }
            // A queue pair's error comes as the status of its requests too, which says more.
            _ => {}
        }
    }

    fn look_at_ports(&mut self) {
        let now_ms = self.now_ms;
        let (late, still): (Vec<_>, Vec<_>) =
            self.down.drain(..).partition(|(_, since)| now_ms >= since + PORT_GRACE_MS);
        self.down = still;
        for (d, _) in late {
            let device = &mut self.devices[d];
            if !device.is_active() {
                let (name, port) = (&device.rail.device, device.rail.port);
                let why = format!("port {port} of {name} has been down for {PORT_GRACE_MS} ms");
                self.lose_all_on(d, &why, false);
            }
        }
        self.drop_broken();
    }

    fn drop_broken(&mut self) {
        for d in 0..self.devices.len() {
            let device = &mut self.devices[d];
            if let Some(why) = device.broken.clone().filter(|_| !device.given_up) {
                device.given_up = true;
                self.registry.leave_out(d);
                let why = format!("device {} broke: {why}", device.rail.device);
                self.lose_all_on(d, &why, true);
            }
        }
    }

    /// The rails of a device are of no use any more.
    fn lose_all_on(&mut self, device: usize, why: &str, broke: bool) {
        for at in 0..self.links.len() as u32 {
            let link = &mut self.links[at as usize];
            let Some(rail) = link.pairs.iter().position(|p| p.mine == device) else { continue };
            let cause = Cause::new(CauseKind::Reset, why);
            let Some(Channel { stage, matcher, .. }) = link.channel.as_deref_mut() else { continue };
            let verdict = match stage {
                Stage::None => continue,
                Stage::Meeting(connection, _) => connection.fail_early(rail, cause),
                Stage::Up(connection) => {
                    connection.after_failure(rail, (cause, broke), &self.retired, matcher, &mut self.done)
                }
            };
            self.conclude(at, verdict);
        }
    }
}
