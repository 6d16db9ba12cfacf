//! A store in etcd (version 3), for any number of candidates on any machines.
//!
//! Keys, under a prefix: `leader` (the name of who leads, bound to its lease), `commit` (the number of the last change of this
//! term), and `state/...` for what is remembered.
//!
//! - D1. Every change is a transaction on two conditions: `leader` is still the key that this term created, and `commit` is
//!   the number before. So a former leader changes nothing, and a change that was sent twice, since no answer came, takes
//!   effect once and never after a later one.
//! - D2. A member that does not answer within [`CALL_LIMIT`] is left for the next one, each once per call.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringway_proto::etcd::v3::compare::{CompareResult, CompareTarget, TargetUnion};
use ringway_proto::etcd::v3::kv_client::KvClient;
use ringway_proto::etcd::v3::lease_client::LeaseClient;
use ringway_proto::etcd::v3::request_op::Request;
use ringway_proto::etcd::v3::response_op::Response;
use ringway_proto::etcd::v3::watch_client::WatchClient;
use ringway_proto::etcd::v3::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
    watch_request,
};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{Claim, Entry, Lease, Store, StoreError, Term, Value, Write, latest, size};
use crate::rpc::credentials::Credentials;
use crate::settings::HostPort;

/// A member that does not answer within this time is left for the next.
pub const CALL_LIMIT: Duration = Duration::from_millis(500);
/// The port of etcd for clients.
const PORT: u16 = 2379;
/// Changes in one transaction: etcd takes 128 operations.
const TXN_OPERATIONS: usize = 100;
/// Bytes of keys and values in one transaction: etcd takes 1.5 MiB.
const TXN_BYTES: usize = 5 << 18;
/// Longest value that a service over etcd takes, in bytes, so that with its key it fits in a transaction.
pub const VALUE_LIMIT_BYTES: usize = 1 << 20;
/// Keys that are read at once, at first: a quarter of them each time that they do not come within [`CALL_LIMIT`], since
/// values may be long and the way slow.
const PAGE_KEYS: i64 = 256;
/// Longest answer that is taken, in bytes: a page of the longest values.
const ANSWER_LIMIT_BYTES: usize = 512 << 20;

/// Where etcd is: its members, and the prefix of our keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// At least one.
    pub members: Vec<HostPort>,
    /// Begins our keys; candidates with the same one stand for the same service.
    pub prefix: String,
    /// Whether it is spoken to in TLS.
    pub tls: bool,
}

impl EtcdAddress {
    /// Reads `etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX]`, or `etcds://` for TLS. Without a prefix it is `ringway/NAME`.
    ///
    /// # Errors
    /// In words, when it is not of that form.
    pub fn parse(text: &str, name: &str) -> Result<EtcdAddress, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err("it does not begin with etcd:// or etcds://".to_owned()),
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let member = |text: &str| {
            HostPort::parse(text).or_else(|| HostPort::parse(&format!("{text}:{PORT}"))).ok_or_else(|| {
                format!(
                    "{text:?} is not HOST or HOST:PORT; an IPv6 address goes in brackets, as in [::1]:{PORT}"
                )
            })
        };
        let members = members.split(',').map(member).collect::<Result<Vec<_>, _>>()?;
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { format!("ringway/{name}") } else { prefix.to_owned() };
        Ok(EtcdAddress { members, prefix, tls })
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self.members.iter().map(ToString::to_string).collect();
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", members.join(","), self.prefix)
    }
}

/// A way to etcd.
#[derive(Clone)]
pub struct EtcdStore(Arc<Inner>);

struct Inner {
    channels: Vec<Channel>,
    /// The member that is asked first.
    current: AtomicUsize,
    address: EtcdAddress,
    span: Duration,
    /// The term of the last commit, and how many there were in it (D1).
    commits: Mutex<(Term, u64)>,
}

impl EtcdStore {
    /// Makes ready to ask etcd; connections are made when they are needed, in TLS where there are `credentials`. Leases are of
    /// `span`, in whole seconds. Must be called within a runtime.
    ///
    /// # Errors
    /// In words, when an address is none.
    pub fn new(address: EtcdAddress, span: Duration, credentials: &Credentials) -> Result<EtcdStore, String> {
        let channel = |member: &HostPort| {
            let member = member.to_string();
            let endpoint = Endpoint::from_shared(format!("http://{member}"));
            let endpoint = endpoint.map_err(|error| format!("{member}: {error}"))?;
            Ok(endpoint.connect_with_connector_lazy(credentials.connector(&member, CALL_LIMIT)))
        };
        let channels = address.members.iter().map(channel).collect::<Result<Vec<_>, String>>()?;
        let never = Term { revision: 0, lease: Lease(0) };
        let (current, commits) = (AtomicUsize::new(0), Mutex::new((never, 0)));
        Ok(EtcdStore(Arc::new(Inner { channels, current, address, span, commits })))
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.0.address.prefix).into_bytes()
    }

    /// Asks one member after the other (D2).
    async fn ask<T, F>(&self, what: &'static str, call: impl Fn(Channel) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let (members, mut why) = (self.0.channels.len(), String::new());
        for _ in 0..members {
            let at = self.0.current.load(Ordering::Relaxed);
            match tokio::time::timeout(CALL_LIMIT, call(self.0.channels[at % members].clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) if !is_passing(&status) => {
                    let (endpoints, why) = (self.0.address.to_string(), status.message().to_owned());
                    return Err(StoreError::Refused { endpoints, what, why });
                }
                Ok(Err(status)) => why = cause(&status),
                Err(_) => why = format!("no answer within {CALL_LIMIT:?}"),
            }
            // Another call may have moved on already.
            let next = at.wrapping_add(1);
            let _ = self.0.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        Err(StoreError::Unreachable { endpoints: self.0.address.to_string(), what, why })
    }

    async fn transaction(&self, what: &'static str, txn: TxnRequest) -> Result<TxnResponse, StoreError> {
        self.ask(what, |channel| {
            let txn = txn.clone();
            async move { Ok(KvClient::new(channel).txn(txn).await?.into_inner()) }
        })
        .await
    }

    /// One transaction of changes (D1).
    async fn change(&self, term: Term, writes: &[Write]) -> Result<(), StoreError> {
        let last = {
            let mut commits = self.0.commits.lock().unwrap_or_else(PoisonError::into_inner);
            if commits.0 != term {
                *commits = (term, 0);
            }
            commits.1
        };
        let (leader, commit) = (self.key("leader"), self.key("commit"));
        let conditions = vec![
            equals(&leader, CompareTarget::Create, TargetUnion::CreateRevision(term.revision)),
            equals(&commit, CompareTarget::Value, TargetUnion::Value(mark(term, last))),
        ];
        let change = |write: &Write| {
            let key = self.key(&format!("state/{}", write.key));
            operation(match &write.value {
                Some(value) => Request::RequestPut(PutRequest { key, value: value.to_vec(), lease: 0 }),
                None => Request::RequestDeleteRange(DeleteRangeRequest { key, range_end: Vec::new() }),
            })
        };
        let counted = operation(Request::RequestPut(PutRequest {
            key: commit.clone(),
            value: mark(term, last + 1),
            lease: 0,
        }));
        let txn = TxnRequest {
            compare: conditions,
            success: writes.iter().map(change).chain([counted]).collect(),
            failure: vec![read(&leader), read(&commit)],
        };
        let answer = self.transaction("remember", txn).await?;
        if !answer.succeeded {
            let found = found(answer);
            let leads =
                found.first().is_some_and(|kv| kv.key == leader && kv.create_revision == term.revision);
            let done = found.last().is_some_and(|kv| kv.key == commit && kv.value == mark(term, last + 1));
            if !(leads && done) {
                return Err(StoreError::Fenced);
            }
        }
        self.0.commits.lock().unwrap_or_else(PoisonError::into_inner).1 = last + 1;
        Ok(())
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({})", self.0.address)
    }
}

/// What lies beneath a call that was not answered.
fn cause(status: &Status) -> String {
    let mut source = std::error::Error::source(status);
    let mut words = status.message().to_owned();
    while let Some(error) = source {
        words = error.to_string();
        source = error.source();
    }
    words
}

/// Whether another member may do better.
fn is_passing(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
        || matches!(
            status.code(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted | Code::Unknown
        )
}

fn equals(key: &[u8], target: CompareTarget, to: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.to_vec(),
        target_union: Some(to),
    }
}

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn read(key: &[u8]) -> RequestOp {
    operation(Request::RequestRange(RangeRequest { key: key.to_vec(), ..RangeRequest::default() }))
}

/// The keys that a transaction has read.
fn found(answer: TxnResponse) -> Vec<KeyValue> {
    let read = answer.responses.into_iter().filter_map(|response| match response.response {
        Some(Response::ResponseRange(range)) => Some(range.kvs),
        _ => None,
    });
    read.flatten().collect()
}

/// What is under `commit` after so many changes of a term.
fn mark(term: Term, commits: u64) -> Vec<u8> {
    format!("{}/{commits}", term.lease.0).into_bytes()
}

/// The first key after all that begin with `prefix`, which ends in a slash.
fn after_all(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    // A slash is followed by the digit 0.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Cuts batches into transactions, none of them cut unless it is over the limits by itself.
fn transactions(batches: Vec<Vec<Write>>) -> Result<Vec<Vec<Write>>, StoreError> {
    let (mut all, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
    for batch in batches {
        let whole: usize = batch.iter().map(size).sum();
        let fits = |open: &Vec<Write>, bytes: usize, more: usize, of: usize| {
            open.is_empty() || (open.len() + of <= TXN_OPERATIONS && bytes + more <= TXN_BYTES)
        };
        if !fits(&open, bytes, whole, batch.len()) {
            all.push(latest(std::mem::take(&mut open)));
            bytes = 0;
        }
        for write in batch {
            let more = size(&write);
            if more > TXN_BYTES {
                return Err(StoreError::TooLarge { key: write.key, bytes: more, limit_bytes: TXN_BYTES });
            }
            if !fits(&open, bytes, more, 1) {
                all.push(latest(std::mem::take(&mut open)));
                bytes = 0;
            }
            bytes += more;
            open.push(write);
        }
    }
    if !open.is_empty() {
        all.push(latest(open));
    }
    Ok(all)
}

impl Store for EtcdStore {
    async fn grant(&self) -> Result<(Lease, Duration), StoreError> {
        let ttl = i64::try_from(self.0.span.as_secs()).unwrap_or(i64::MAX).max(1);
        let granted = self.ask("grant a lease", |channel| async move {
            let request = LeaseGrantRequest { ttl, id: 0 };
            Ok(LeaseClient::new(channel).lease_grant(request).await?.into_inner())
        });
        let granted = granted.await?;
        Ok((Lease(granted.id), seconds(granted.ttl)))
    }

    async fn renew(&self, lease: Lease) -> Result<Option<Duration>, StoreError> {
        let renewed = self.ask("renew a lease", |channel| async move {
            let request = tokio_stream::once(LeaseKeepAliveRequest { id: lease.0 });
            let mut answers = LeaseClient::new(channel).lease_keep_alive(request).await?.into_inner();
            answers.message().await?.ok_or_else(|| Status::unavailable("the answer ended before it began"))
        });
        let ttl = renewed.await?.ttl;
        Ok((ttl > 0).then(|| seconds(ttl)))
    }

    async fn revoke(&self, lease: Lease) -> Result<(), StoreError> {
        let revoked = self.ask("end a lease", |channel| async move {
            LeaseClient::new(channel).lease_revoke(LeaseRevokeRequest { id: lease.0 }).await
        });
        revoked.await.map(drop)
    }

    async fn claim(&self, lease: Lease, name: &str) -> Result<Claim, StoreError> {
        let (leader, commit) = (self.key("leader"), self.key("commit"));
        let (value, first) = (name.as_bytes().to_vec(), mark(Term { revision: 0, lease }, 0));
        let txn = TxnRequest {
            compare: vec![equals(&leader, CompareTarget::Create, TargetUnion::CreateRevision(0))],
            success: vec![
                operation(Request::RequestPut(PutRequest { key: leader.clone(), value, lease: lease.0 })),
                operation(Request::RequestPut(PutRequest { key: commit, value: first, lease: 0 })),
            ],
            failure: vec![read(&leader)],
        };
        let answer = self.transaction("say who leads", txn).await?;
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        if answer.succeeded {
            return Ok(Claim::Won { revision });
        }
        match found(answer).into_iter().next() {
            // The claim was sent twice, and the first has won.
            Some(kv) if kv.lease == lease.0 => Ok(Claim::Won { revision: kv.create_revision }),
            Some(kv) => {
                let leader = String::from_utf8_lossy(&kv.value).into_owned();
                Ok(Claim::Held { leader, revision })
            }
            None => Ok(Claim::Held { leader: String::new(), revision }),
        }
    }

    async fn changed(&self, revision: i64) -> Result<(), StoreError> {
        let create = WatchCreateRequest {
            key: self.key("leader"),
            range_end: Vec::new(),
            start_revision: revision.saturating_add(1),
        };
        let opened = self.ask("watch the leader", |channel| {
            let create = watch_request::RequestUnion::CreateRequest(create.clone());
            // The watch ends with the requests.
            let requests = tokio_stream::once(WatchRequest { request_union: Some(create) })
                .chain(tokio_stream::pending());
            async move { Ok(WatchClient::new(channel).watch(requests).await?.into_inner()) }
        });
        let mut answers = opened.await?;
        loop {
            match answers.message().await {
                Ok(Some(answer)) if answer.events.is_empty() && !answer.canceled => {}
                // Also when it was cancelled, as a compaction does, or broke: the leadership is looked at again.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }

    async fn load(&self) -> Result<Vec<Entry>, StoreError> {
        let prefix = self.key("state/");
        let (mut from, end, mut limit) = (prefix.clone(), after_all(&prefix), PAGE_KEYS);
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let request =
                RangeRequest { key: from.clone(), range_end: end.clone(), limit, ..RangeRequest::default() };
            let page = self.ask("give the state", |channel| {
                let request = request.clone();
                let mut client = KvClient::new(channel).max_decoding_message_size(ANSWER_LIMIT_BYTES);
                async move { Ok(client.range(request).await?.into_inner()) }
            });
            let page = match page.await {
                Err(StoreError::Unreachable { .. }) if limit > 1 => {
                    limit /= 4;
                    continue;
                }
                page => page?,
            };
            if let Some(last) = page.kvs.last() {
                // The next key there can be.
                from = [last.key.as_slice(), &[0]].concat();
            }
            for kv in page.kvs {
                let name = String::from_utf8_lossy(&kv.key[prefix.len()..]).into_owned();
                entries.push((name, Value::new(kv.value)));
            }
            if !page.more {
                return Ok(entries);
            }
        }
    }

    async fn commit(&self, term: Term, batches: Vec<Vec<Write>>) -> Result<(), StoreError> {
        for writes in transactions(batches)? {
            self.change(term, &writes).await?;
        }
        Ok(())
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, bytes: usize) -> Write {
        Write { key: key.to_owned(), value: Some(Value::new(vec![0; bytes])) }
    }

    #[test]
    fn addresses() {
        let read = |text: &str| EtcdAddress::parse(text, "job").map(|address| address.to_string());
        assert_eq!(read("etcd://a,b:1,[::1]:2"), Ok("etcd://a:2379,b:1,[::1]:2/ringway/job".to_owned()));
        assert_eq!(read("etcd://a/x/y/"), Ok("etcd://a:2379/x/y".to_owned()));
        assert_eq!(read("etcds://a"), Ok("etcds://a:2379/ringway/job".to_owned()));
        for bad in ["a:1", "http://a", "etcds://", "etcd://", "etcd://a,,b", "etcd://a:0", "etcd://::1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn batches_stay_whole_while_they_fit() {
        let cut = |batches| -> Vec<usize> { transactions(batches).unwrap().iter().map(Vec::len).collect() };
        let named =
            |from: usize, n: usize| (from..from + n).map(|i| put(&i.to_string(), 1)).collect::<Vec<_>>();
        assert_eq!(cut(vec![named(0, 60), named(60, 30), named(90, 30)]), [90, 30]);
        assert_eq!(cut(vec![named(0, 250), vec![put("z", 1)]]), [100, 100, 51]);
        assert_eq!(cut(vec![vec![put("a", 1 << 20)], vec![put("b", 1 << 20)]]), [1, 1]);
        assert_eq!(cut(vec![vec![put("a", 1)], vec![put("a", 2)]]), [1], "the last to a key counts");
        assert!(matches!(transactions(vec![vec![put("a", 2 << 20)]]), Err(StoreError::TooLarge { .. })));
    }
}
