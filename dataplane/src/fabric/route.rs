//! What an endpoint offers in its address, and, purely, the order in which two endpoints try what both offer.
//!
//! - **P1** Both sides come to the same order from the two offers alone, so that they meet on the same transport.
//! - **P2** A transport that either side requires excludes those that neither requires.
//! - **P3** Reading an offer never panics and is bounded, whatever the bytes (T9).
//!
//! Wire form of an address: the bytes `RWE1`, the number of offers (1 byte), and for each: policy (1 byte: 0 prefer,
//! 1 require), length of the name (1 byte), name, length of the transport's address (2 bytes, little endian), address.
//! Offers stand in the order of preference.

use crate::fabric::why::Record;
use crate::transport::Address;

/// Most transports that an address offers.
pub const MAX_OFFERS: usize = 8;
/// Longest name of a transport in bytes.
pub const MAX_NAME_BYTES: usize = 32;
/// Longest address of a transport in bytes.
pub const MAX_ADDRESS_BYTES: usize = 4096;

const MAGIC: [u8; 4] = *b"RWE1";

/// How much a transport is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Every peer is reached by this transport (or another required one), or not at all.
    Require,
    /// Used with peers that can, in the order in which the transports are given.
    #[default]
    Prefer,
    /// Not used, and not offered.
    Off,
}

/// One transport as an endpoint offers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The transport's name.
    pub name: String,
    /// Whether this side requires it.
    pub required: bool,
    /// Where it is reached.
    pub address: Address,
}

/// The wire form of these offers, in the order of preference.
///
/// # Panics
/// With more offers, or longer ones, than the limits of this module: a transport's name and address are its author's.
pub fn write_offers(offers: &[Offer]) -> Address {
    assert!(offers.len() <= MAX_OFFERS, "{} transports are over the limit of {MAX_OFFERS}", offers.len());
    let mut bytes = MAGIC.to_vec();
    bytes.push(offers.len() as u8);
    for Offer { name, required, address } in offers {
        let (name, address) = (name.as_bytes(), &address.0);
        assert!(name.len() <= MAX_NAME_BYTES && address.len() <= MAX_ADDRESS_BYTES, "an offer is too long");
        bytes.extend([u8::from(*required), name.len() as u8]);
        bytes.extend(name);
        bytes.extend((address.len() as u16).to_le_bytes());
        bytes.extend(address);
    }
    Address(bytes)
}

/// The offers in an address.
///
/// # Errors
/// What is wrong with the bytes.
pub fn read_offers(address: &Address) -> Result<Vec<Offer>, &'static str> {
    fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], &'static str> {
        rest.split_off(..n).ok_or("it is cut short")
    }
    let mut rest = address.0.as_slice();
    if take(&mut rest, MAGIC.len())? != MAGIC {
        return Err("it is no endpoint's address, or that of another version");
    }
    let count = usize::from(take(&mut rest, 1)?[0]);
    if count > MAX_OFFERS {
        return Err("it offers more transports than there are");
    }
    let mut offers: Vec<Offer> = Vec::with_capacity(count);
    for _ in 0..count {
        let head = take(&mut rest, 2)?;
        let (required, name_len) = (head[0] == 1, usize::from(head[1]));
        if head[0] > 1 || name_len > MAX_NAME_BYTES {
            return Err("an offer is malformed");
        }
        let name = std::str::from_utf8(take(&mut rest, name_len)?).map_err(|_| "a name is not text")?;
        let len = take(&mut rest, 2)?;
        let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
        if len > MAX_ADDRESS_BYTES {
            return Err("a transport's address is too long");
        }
        if offers.iter().any(|o| o.name == name) {
            return Err("it offers a transport twice");
        }
        let address = Address(take(&mut rest, len)?.to_vec());
        offers.push(Offer { name: name.to_owned(), required, address });
    }
    if rest.is_empty() { Ok(offers) } else { Err("bytes follow its end") }
}

/// The transports to try, best first, as indices into the two offers; `record` gets those that are out.
///
/// The order is by the sum of the two sides' places in their own lists, then by name (P1).
pub fn order(mine: &[Offer], theirs: &[Offer], record: &mut Record) -> Vec<(usize, usize)> {
    let mut common: Vec<(usize, usize)> = Vec::new();
    for (i, offer) in mine.iter().enumerate() {
        match theirs.iter().position(|t| t.name == offer.name) {
            Some(t) => common.push((i, t)),
            None => record.reject(&offer.name, "the peer does not offer it"),
        }
    }
    for offer in theirs.iter().filter(|t| mine.iter().all(|m| m.name != t.name)) {
        record.reject(&offer.name, "this side does not offer it");
    }
    if mine.iter().chain(theirs).any(|o| o.required) {
        let required = |(m, t): &(usize, usize)| mine[*m].required || theirs[*t].required;
        for (m, _) in common.iter().filter(|c| !required(c)) {
            record.reject(&mine[*m].name, "another transport is required");
        }
        common.retain(required);
    }
    common.sort_by(|a, b| (a.0 + a.1).cmp(&(b.0 + b.1)).then_with(|| mine[a.0].name.cmp(&mine[b.0].name)));
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::seed::Seeded;

    fn offers(names: &[&str]) -> Vec<Offer> {
        let offer = |(i, name): (usize, &&str)| Offer {
            name: name.trim_end_matches('!').to_owned(),
            required: name.ends_with('!'),
            address: Address(vec![i as u8; i * 3]),
        };
        names.iter().enumerate().map(offer).collect()
    }

    fn tried(mine: &[&str], theirs: &[&str]) -> (Vec<String>, Record) {
        let (mine, theirs) = (offers(mine), offers(theirs));
        let mut record = Record::default();
        let order = order(&mine, &theirs, &mut record);
        (order.into_iter().map(|(m, _)| mine[m].name.clone()).collect(), record)
    }

    #[test]
    fn both_sides_try_in_the_same_order() {
        // P1, over all pairs of short lists.
        let names = ["shm", "rdma", "uring", "rdma!", "uring!"];
        let mut lists: Vec<Vec<&str>> = vec![vec![]];
        for a in names {
            lists.push(vec![a]);
            lists.extend(names.iter().filter(|b| b[..3] != a[..3]).map(|b| vec![a, b]));
        }
        for a in &lists {
            for b in &lists {
                assert_eq!(tried(a, b).0, tried(b, a).0, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn requirements_exclude_and_reasons_are_kept() {
        // P2
        assert_eq!(tried(&["shm", "rdma", "uring"], &["shm", "uring"]).0, ["shm", "uring"]);
        let (order, record) = tried(&["shm", "uring!"], &["shm", "uring"]);
        assert_eq!(order, ["uring"]);
        assert_eq!(record.to_string(), "no transport (not shm: another transport is required)");
        let (order, record) = tried(&["rdma!"], &["uring"]);
        assert!(order.is_empty());
        assert_eq!(
            record.to_string(),
            "no transport (not rdma: the peer does not offer it; not uring: this side does not offer it)"
        );
    }

    #[test]
    fn addresses_read_back_and_hostile_bytes_are_refused() {
        // P3
        let all = offers(&["shm", "rdma!", "uring"]);
        let address = write_offers(&all);
        assert_eq!(read_offers(&address), Ok(all));
        assert_eq!(read_offers(&write_offers(&[])), Ok(vec![]));
        for n in 0..address.0.len() {
            assert!(read_offers(&Address(address.0[..n].to_vec())).is_err(), "cut after {n}");
        }
        assert!(read_offers(&Address([address.0.as_slice(), &[0]].concat())).is_err());
        let twice = write_offers(&offers(&["shm", "shm"]));
        assert_eq!(read_offers(&twice), Err("it offers a transport twice"));
        let mut random = Seeded::new(3);
        for _ in 0..20_000 {
            let mut bytes = address.0.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            if let Ok(read) = read_offers(&Address(bytes)) {
                assert!(read.len() <= MAX_OFFERS);
            }
        }
    }
}
