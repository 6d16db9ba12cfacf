//! What a rank tells the others when it joins: where it runs, and how it is reached.

use ringway_dataplane::transport::Address;
use ringway_topology::model::order::{Site, SiteError};

/// What every card begins with; the digit is its version.
const MAGIC: &[u8] = b"RWC1";

/// Why a card cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// It is cut, or of another kind.
    #[error("it does not begin as this version's does: all ranks need one version of ringway")]
    Foreign,
    /// It does not say where the rank runs.
    #[error(transparent)]
    Site(#[from] SiteError),
}

/// The card: the magic, the length of the site's text in two bytes (little endian), the text, and the address.
pub(super) fn write(site: &Site, address: &Address) -> Vec<u8> {
    let site = site.to_string();
    // A site has a few numbers, and at most seventeen names of at most 255 bytes.
    let length = u16::try_from(site.len()).unwrap_or_else(|_| unreachable!("the text of a site is short"));
    [MAGIC, &length.to_le_bytes(), site.as_bytes(), &address.0].concat()
}

/// Reads a card.
///
/// # Errors
/// [`CardError`].
pub(super) fn read(card: &[u8]) -> Result<(Site, Address), CardError> {
    let rest = card.strip_prefix(MAGIC).ok_or(CardError::Foreign)?;
    let (length, rest) = rest.split_first_chunk().ok_or(CardError::Foreign)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (site, address) = rest.split_at_checked(length).ok_or(CardError::Foreign)?;
    let site = std::str::from_utf8(site).map_err(|_| CardError::Foreign)?;
    Ok((site.parse()?, Address(address.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_read_back_and_cut_ones_refused() {
        let site = Site { node: Some(1), switches: vec!["rack".to_owned()], ..Site::on("a") };
        let address = Address(vec![1, 2, 3]);
        let card = write(&site, &address);
        assert_eq!(read(&card), Ok((site, address)));
        let shortest = card.len() - 3;
        for length in 0..shortest {
            assert!(read(&card[..length]).is_err(), "{length}");
        }
        assert_eq!(read(b"RWE2"), Err(CardError::Foreign));
        assert!(matches!(read(b"RWC1\x03\x00a=b"), Err(CardError::Site(_))));
    }
}
