//! What a rank tells the others when it joins: where it runs, and how it is reached.

use ringway_collectives::schedule::{Tuning, TuningError};
use ringway_dataplane::transport::Address;
use ringway_topology::model::order::{Site, SiteError};

/// What every card begins with; the digit is its version.
const MAGIC: &[u8] = b"RWC2";
/// Bytes of a length.
type Length = u32;

/// Why a card cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// It is cut, or of another kind.
    #[error("it does not begin as this version's does: all ranks need one version of ringway")]
    Foreign,
    /// It does not say where the rank runs.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// It does not say what was measured.
    #[error("what it says of RINGWAY_TUNING_FILE: {0}")]
    Tuning(#[from] TuningError),
}

/// What a card says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Card {
    /// Where the rank runs.
    pub(super) site: Site,
    /// What `ringway tune` has measured, where the rank tells it.
    pub(super) tuning: Option<Tuning>,
    /// How it is reached.
    pub(super) address: Address,
}

/// A text behind its length in bytes (four of them, little endian).
fn text(text: &str) -> Vec<u8> {
    // Sites have a few numbers and at most seventeen names, and a tuning has a limit that is looked at when it is read.
    let length = Length::try_from(text.len()).unwrap_or_else(|_| unreachable!("both texts are short"));
    [&length.to_le_bytes(), text.as_bytes()].concat()
}

/// The card: the magic, the site, the tuning (empty for none), and the address.
pub(super) fn write(card: &Card) -> Vec<u8> {
    let tuning = card.tuning.as_ref().map_or_else(String::new, Tuning::to_string);
    [MAGIC, &text(&card.site.to_string()), &text(&tuning), &card.address.0].concat()
}

/// Reads a card.
///
/// # Errors
/// [`CardError`].
pub(super) fn read(card: &[u8]) -> Result<Card, CardError> {
    let rest = card.strip_prefix(MAGIC).ok_or(CardError::Foreign)?;
    let (site, rest) = take_text(rest)?;
    let (tuning, address) = take_text(rest)?;
    let tuning = if tuning.is_empty() { None } else { Some(tuning.parse()?) };
    Ok(Card { site: site.parse()?, tuning, address: Address(address.to_vec()) })
}

fn take_text(bytes: &[u8]) -> Result<(&str, &[u8]), CardError> {
    let (length, rest) = bytes.split_first_chunk().ok_or(CardError::Foreign)?;
    let length = usize::try_from(Length::from_le_bytes(*length)).map_err(|_| CardError::Foreign)?;
    let (text, rest) = rest.split_at_checked(length).ok_or(CardError::Foreign)?;
    Ok((std::str::from_utf8(text).map_err(|_| CardError::Foreign)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_read_back_and_cut_ones_refused() {
        let site = Site { node: Some(1), switches: vec!["rack".to_owned()], ..Site::on("a") };
        for tuning in [None, Some(Tuning::default())] {
            let card = Card { site: site.clone(), tuning, address: Address(vec![1, 2, 3]) };
            let written = write(&card);
            assert_eq!(read(&written), Ok(card));
            let shortest = written.len() - 3;
            for length in 0..shortest {
                assert!(read(&written[..length]).is_err(), "{length}");
            }
        }
        assert_eq!(read(b"RWE2"), Err(CardError::Foreign));
        assert!(matches!(read(b"RWC2\x03\0\0\0a=b\0\0\0\0"), Err(CardError::Site(_))));
        let wrong = [MAGIC, &text(&site.to_string()), &text("ringway-tuning 0")].concat();
        assert!(matches!(read(&wrong), Err(CardError::Tuning(TuningError { line: 1, .. }))));
    }
}
