//! What travels: bytes that are read in place, and a few that say what they are.

use crate::memory::SharedBytes;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Most bytes that say what a value is: a type and a shape of 254 dimensions fit.
pub const MAX_META_BYTES: usize = 2560;
/// So many are kept without an allocation.
const INLINE_BYTES: usize = 46;

/// A few bytes, opaque here, that say what a payload is (for a tensor: its type and shape).
#[derive(Clone)]
pub struct Meta(Kept);

#[derive(Clone)]
enum Kept {
    Inline(u8, [u8; INLINE_BYTES]),
    Shared(Arc<[u8]>),
}

impl Meta {
    /// These bytes, or `None` when they are over [`MAX_META_BYTES`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Meta> {
        if let Some(len) = u8::try_from(bytes.len()).ok().filter(|len| usize::from(*len) <= INLINE_BYTES) {
            let mut kept = [0; INLINE_BYTES];
            kept[..bytes.len()].copy_from_slice(bytes);
            return Some(Meta(Kept::Inline(len, kept)));
        }
        (bytes.len() <= MAX_META_BYTES).then(|| Meta(Kept::Shared(bytes.into())))
    }
}

impl Default for Meta {
    fn default() -> Meta {
        Meta(Kept::Inline(0, [0; INLINE_BYTES]))
    }
}

impl Deref for Meta {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Inline(len, bytes) => &bytes[..usize::from(*len)],
            Kept::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Meta {
    fn eq(&self, other: &Meta) -> bool {
        **self == **other
    }
}

impl Eq for Meta {}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meta({:02x?})", &**self)
    }
}

/// A tensor, or whatever else its two ends agree on.
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// Says what the payload is.
    pub meta: Meta,
    /// The bytes. Lent to the transport from where they lie; who receives them in another process gets a block of a pool.
    pub payload: SharedBytes,
}

impl Value {
    /// A value of these bytes.
    #[must_use]
    pub fn new(meta: Meta, payload: SharedBytes) -> Value {
        Value { meta, payload }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_is_kept_whatever_its_length() {
        for len in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, MAX_META_BYTES] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let meta = Meta::new(&bytes).unwrap();
            assert_eq!(*meta, bytes[..]);
            assert_eq!(meta.clone(), meta);
        }
        assert_eq!(Meta::new(&[0; MAX_META_BYTES + 1]), None);
    }
}
