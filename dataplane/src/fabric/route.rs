//! What an endpoint offers in its address, and, purely, the order in which two endpoints try what both offer.
//!
//! - **P1** Both sides come to the same order from the two offers alone, so that they meet on the same transport.
//! - **P2** A transport that either side requires excludes those that neither requires.
//! - **P3** Reading an offer never panics and is bounded, whatever the bytes (T9).
//!
//! Wire form of an address: the bytes `RWE2`, the number of offers (1 byte), and for each: policy (1 byte: 0 prefer,
//! 1 require), length of the name (1 byte), name, length of the transport's address (2 bytes, little endian), address.
//! Offers stand in the order of preference. Then the number of transports that are withheld (1 byte), and for each:
//! length of the name (1 byte), name, length of the reason (1 byte), reason.

use crate::fabric::why::Record;
use crate::transport::Address;

/// Most transports that an address offers.
pub const MAX_OFFERS: usize = 8;
/// Longest name of a transport in bytes.
pub const MAX_NAME_BYTES: usize = 32;
/// Longest address of a transport in bytes.
pub const MAX_ADDRESS_BYTES: usize = 4096;

/// Longest reason of a transport that is not offered, in bytes; longer ones are cut.
pub const MAX_REASON_BYTES: usize = 255;

const MAGIC: [u8; 4] = *b"RWE2";

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

/// A transport that an endpoint knows of and does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The transport's name.
    pub name: String,
    /// Why it is not offered, for a peer that wanted it.
    pub why: String,
}

/// What an endpoint's address says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// What it offers, most preferred first.
    pub offered: Vec<Offer>,
    /// What it does not offer, and why.
    pub withheld: Vec<Withheld>,
}

impl Offers {
    fn why_not(&self, name: &str) -> Option<&str> {
        self.withheld.iter().find(|withheld| withheld.name == name).map(|withheld| withheld.why.as_str())
    }

    fn requires(&self) -> Option<&str> {
        self.offered.iter().find(|offer| offer.required).map(|offer| offer.name.as_str())
    }
}

/// The wire form of these offers.
///
/// # Panics
/// With more offers, or longer ones, than the limits of this module: a transport's name and address are its author's.
pub fn write_offers(offers: &Offers) -> Address {
    let Offers { offered, withheld } = offers;
    let most = offered.len().max(withheld.len());
    assert!(most <= MAX_OFFERS, "{most} transports are over the limit of {MAX_OFFERS}");
    let mut bytes = MAGIC.to_vec();
    bytes.push(offered.len() as u8);
    for Offer { name, required, address } in offered {
        let (name, address) = (name.as_bytes(), &address.0);
        assert!(name.len() <= MAX_NAME_BYTES && address.len() <= MAX_ADDRESS_BYTES, "an offer is too long");
        bytes.extend([u8::from(*required), name.len() as u8]);
        bytes.extend(name);
        bytes.extend((address.len() as u16).to_le_bytes());
        bytes.extend(address);
    }
    bytes.push(withheld.len() as u8);
    for Withheld { name, why } in withheld {
        assert!(name.len() <= MAX_NAME_BYTES, "a name is too long");
        let why = shortened(why);
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.push(why.len() as u8);
        bytes.extend(why.as_bytes());
    }
    Address(bytes)
}

/// As much of a reason as an address holds, on one line.
fn shortened(why: &str) -> String {
    let plain: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let most = MAX_REASON_BYTES.min(plain.len());
    let end = (0..=most).rev().find(|end| plain.is_char_boundary(*end)).unwrap_or(0);
    plain[..end].to_owned()
}

/// The offers in an address.
///
/// # Errors
/// What is wrong with the bytes.
pub fn read_offers(address: &Address) -> Result<Offers, &'static str> {
    let mut rest = Reader(&address.0);
    if rest.take(MAGIC.len())? != MAGIC {
        return Err("it is no endpoint's address, or that of another version");
    }
    let mut offers = Offers::default();
    for _ in 0..rest.count()? {
        let (required, name) = (rest.required()?, rest.name()?);
        let len = rest.take(2)?;
        let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
        if len > MAX_ADDRESS_BYTES {
            return Err("a transport's address is too long");
        }
        if offers.offered.iter().any(|o| o.name == name) {
            return Err("it offers a transport twice");
        }
        offers.offered.push(Offer { name, required, address: Address(rest.take(len)?.to_vec()) });
    }
    for _ in 0..rest.count()? {
        let name = rest.name()?;
        let len = usize::from(rest.byte()?);
        offers.withheld.push(Withheld { name, why: rest.text(len)? });
    }
    if rest.0.is_empty() { Ok(offers) } else { Err("bytes follow its end") }
}

/// The bytes of an address that are not yet read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        self.0.split_off(..n).ok_or("it is cut short")
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.take(1)?[0])
    }

    fn count(&mut self) -> Result<usize, &'static str> {
        let count = usize::from(self.byte()?);
        if count > MAX_OFFERS { Err("it names more transports than there are") } else { Ok(count) }
    }

    fn required(&mut self) -> Result<bool, &'static str> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a policy is malformed"),
        }
    }

    fn name(&mut self) -> Result<String, &'static str> {
        let len = usize::from(self.byte()?);
        if len > MAX_NAME_BYTES { Err("a name is too long") } else { self.text(len) }
    }

    /// What people are going to read: no control characters.
    fn text(&mut self, len: usize) -> Result<String, &'static str> {
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| "a name or reason is not text")?;
        let plain = !text.contains(char::is_control);
        if plain { Ok(text.to_owned()) } else { Err("a name or reason is not text") }
    }
}

/// The transports to try, best first, as indices into the two offers; `record` gets those that are out.
///
/// The order is by the sum of the two sides' places in their own lists, then by name (P1).
pub fn order(mine: &Offers, theirs: &Offers, record: &mut Record) -> Vec<(usize, usize)> {
    let mut common: Vec<(usize, usize)> = Vec::new();
    for (i, offer) in mine.offered.iter().enumerate() {
        match theirs.offered.iter().position(|t| t.name == offer.name) {
            Some(t) => common.push((i, t)),
            None => match theirs.why_not(&offer.name) {
                Some(why) => {
                    record.reject(&offer.name, format!("the peer does not offer it, it says: {why}"));
                }
                None => record.reject(&offer.name, "the peer does not offer it"),
            },
        }
    }
    for offer in theirs.offered.iter().filter(|t| mine.offered.iter().all(|m| m.name != t.name)) {
        match mine.why_not(&offer.name) {
            Some(why) => record.reject(&offer.name, why),
            None => record.reject(&offer.name, "this side does not offer it"),
        }
    }
    let required = match (mine.requires(), theirs.requires()) {
        (Some(name), _) => Some(format!("this side requires {name}")),
        (None, Some(name)) => Some(format!("the peer requires {name}")),
        (None, None) => None,
    };
    if let Some(why) = required {
        let required = |(m, t): &(usize, usize)| mine.offered[*m].required || theirs.offered[*t].required;
        for (m, _) in common.iter().filter(|c| !required(c)) {
            record.reject(&mine.offered[*m].name, &why);
        }
        common.retain(required);
    }
    let name = |c: &(usize, usize)| &mine.offered[c.0].name;
    common.sort_by(|a, b| (a.0 + a.1).cmp(&(b.0 + b.1)).then_with(|| name(a).cmp(name(b))));
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::seed::Seeded;

    fn offers(names: &[&str]) -> Offers {
        let offer = |(i, name): (usize, &&str)| Offer {
            name: name.trim_end_matches('!').to_owned(),
            required: name.ends_with('!'),
            address: Address(vec![i as u8; i * 3]),
        };
        Offers { offered: names.iter().enumerate().map(offer).collect(), withheld: Vec::new() }
    }

    fn withheld(name: &str, why: &str) -> Withheld {
        Withheld { name: name.to_owned(), why: why.to_owned() }
    }

    fn tried(mine: &[&str], theirs: &[&str]) -> (Vec<String>, Record) {
        let (mine, theirs) = (offers(mine), offers(theirs));
        let mut record = Record::default();
        let order = order(&mine, &theirs, &mut record);
        (order.into_iter().map(|(m, _)| mine.offered[m].name.clone()).collect(), record)
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
        assert_eq!(record.to_string(), "no transport (not shm: this side requires uring)");
        let (order, record) = tried(&["rdma!"], &["uring"]);
        assert!(order.is_empty());
        assert_eq!(
            record.to_string(),
            "no transport (not rdma: the peer does not offer it; not uring: this side does not offer it)"
        );
    }

    #[test]
    fn each_side_hears_its_own_reason() {
        let (needs, mut has_not) = (offers(&["rdma!", "tcp"]), offers(&["tcp"]));
        has_not.withheld.push(withheld("rdma", "RINGWAY_RDMA=off"));
        let said = |mine: &Offers, theirs: &Offers| {
            let mut record = Record::default();
            assert!(order(mine, theirs, &mut record).is_empty());
            record.to_string()
        };
        assert_eq!(
            said(&needs, &has_not),
            "no transport (not rdma: the peer does not offer it, it says: RINGWAY_RDMA=off; not tcp: this side \
             requires rdma)"
        );
        assert_eq!(
            said(&has_not, &needs),
            "no transport (not rdma: RINGWAY_RDMA=off; not tcp: the peer requires rdma)"
        );
    }

    #[test]
    fn addresses_read_back_and_hostile_bytes_are_refused() {
        // P3
        let mut all = offers(&["shm", "rdma!", "uring"]);
        all.withheld.push(withheld("nccl", "no GPU here"));
        let address = write_offers(&all);
        assert_eq!(read_offers(&address), Ok(all));
        assert_eq!(read_offers(&write_offers(&Offers::default())), Ok(Offers::default()));
        let mut long = Offers::default();
        long.withheld.push(withheld("rdma", &format!("\n{}", "\u{e9}".repeat(200))));
        let read = read_offers(&write_offers(&long)).unwrap();
        assert_eq!(read.withheld[0].why.len(), MAX_REASON_BYTES, "cut between characters");
        long.withheld[0].why.pop();
        long.withheld[0].why.remove(0);
        let read = read_offers(&write_offers(&long)).unwrap();
        assert_eq!(read.withheld[0].why.len(), MAX_REASON_BYTES - 1, "cut between characters");
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
                assert!(read.offered.len().max(read.withheld.len()) <= MAX_OFFERS);
            }
        }
    }
}
