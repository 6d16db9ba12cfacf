//! Rounds of an elastic group, as a task asks for them.

use std::time::{Duration, Instant};

use ringway_proto::ringway::rounds::v1 as wire;
use ringway_proto::ringway::rounds::v1::rounds_client::RoundsClient;

use super::Agent;
use super::errors::JoinError;
use super::operations::{LONGEST_WAIT, MARGIN, left_ms};
use crate::core::coordination::rounds::{RoundLimits, RoundTable, knock_key};
use crate::rpc::{MESSAGE_LIMIT_BYTES, convert};

/// A wish to be in the next generation of an elastic group.
#[derive(Clone, Debug)]
pub struct RoundRequest {
    /// Name of the group, the same for all members.
    pub group: String,
    /// The generation that this process was in last; 0 for none.
    pub after: u64,
    /// How few and how many members there may be, the same for all.
    pub limits: RoundLimits,
    /// The round closes at once when so many are there.
    pub enough: u32,
    /// With fewer it closes so long after it could.
    pub last_call: Duration,
    /// Newcomers may enter, as far as this process is concerned. Members of the last generation decide.
    pub newcomers: bool,
    /// Where the data plane of this process is reached, opaque to the coordinator.
    pub addresses: Vec<u8>,
    /// How long to wait.
    pub timeout: Duration,
    /// The coordinator runs in this process: when it is lost, this process is.
    pub hosts_coordinator: bool,
}

impl Agent {
    /// Asks to be in the next generation of an elastic group, and waits until its round closes: when all members of the last
    /// generation that are left have asked, and there are enough.
    ///
    /// # Errors
    /// When the round does not close in time (who is missing is named), callers disagree about the limits, the members have
    /// left in order, or the coordinator is not reached.
    pub fn next_round(&self, request: RoundRequest) -> Result<RoundTable, JoinError> {
        let group = request.group.clone();
        let wish = wire::RegroupRequest {
            group: request.group,
            process: Some(convert::wire_process(&self.process)),
            after: request.after,
            least: request.limits.least,
            most: request.limits.most,
            enough: request.enough,
            last_call_ms: u64::try_from(request.last_call.as_millis()).unwrap_or(u64::MAX),
            newcomers: request.newcomers,
            addresses: request.addresses,
            timeout_ms: 0,
            hosts_coordinator: request.hosts_coordinator,
        };
        let timeout = request.timeout.min(LONGEST_WAIT);
        let until = Instant::now() + timeout;
        let route = self.route.clone();
        let table = async move {
            let call = |channel| {
                let mut client = RoundsClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
                let wish = wire::RegroupRequest { timeout_ms: left_ms(until), ..wish.clone() };
                async move { client.regroup(wish).await }
            };
            route.call(call).await
        };
        let table = async move { convert::round(table.await?.into_inner()) };
        let table = self.run(timeout + MARGIN, table);
        let table =
            table.map_err(|failure| JoinError::new(&self.process.task, &group, &self.address, &failure))?;
        let host = table.group.members.iter().find(|member| member.hosts_coordinator);
        if let Some(host) = host.filter(|host| host.process != self.process) {
            self.alarms.hosted_by(host);
        }
        Ok(table)
    }

    /// Calls `listener` once when newcomers wait for the generation after this one.
    ///
    /// It is called on the agent's thread and must be quick; it must not call the agent.
    pub fn on_newcomers(&self, group: &str, generation: u64, listener: impl FnOnce() + Send + 'static) {
        self.on_key(&knock_key(group, generation), move |_| listener());
    }
}
