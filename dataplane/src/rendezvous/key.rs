//! What a tensor on its way is known by, in TensorFlow's form:
//! `send_device;incarnation;recv_device;tensor_name;frame:iteration`, the incarnation as 16 hexadecimal digits
//! (`CreateKey` in tensorflow/core/framework/rendezvous.cc).
//!
//! Any other text is a key as well, for those who move values without a graph. A key is hashed once, when it is made;
//! the hash is seeded anew in each process, so that a peer cannot choose keys that collide.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 4096;

/// A text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is nothing in it.
    #[error("a rendezvous key is empty: name the value")]
    Empty,
    /// Over [`MAX_KEY_BYTES`].
    #[error(
        "a rendezvous key of {bytes} bytes is over the limit of {MAX_KEY_BYTES}: shorten the tensor's name"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not of TensorFlow's form.
    #[error(
        "{text:?} is no rendezvous key of the form send_device;incarnation;recv_device;tensor_name;frame:iteration: {why}"
    )]
    Form {
        /// The key, cut to [`SHOWN_BYTES`].
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A part holds the character that stands between parts.
    #[error("{part:?} cannot be part of a rendezvous key: it holds a `;`")]
    Separator {
        /// The part, cut to [`SHOWN_BYTES`].
        part: String,
    },
}

/// Bytes of a bad key that an error shows.
pub const SHOWN_BYTES: usize = 256;

fn shown(text: &str) -> String {
    let mut end = text.len().min(SHOWN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// The parts of a key of TensorFlow's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Where the tensor is made, e.g. `/job:worker/replica:0/task:1/device:CPU:0`.
    pub send_device: &'a str,
    /// Incarnation of that device: a tensor of its earlier life is another one.
    pub send_incarnation: u64,
    /// Where it is needed.
    pub recv_device: &'a str,
    /// The edge, e.g. `edge_7_MatMul`.
    pub tensor_name: &'a str,
    /// The frame of a loop; 0 outside of loops.
    pub frame: u64,
    /// Iteration in the frame; 0 outside of loops.
    pub iteration: i64,
}

/// A key. Cheap to clone, to compare and to look up.
#[derive(Clone)]
pub struct Key {
    text: Arc<str>,
    hash: u64,
}

impl Key {
    /// The key that is this text.
    ///
    /// # Errors
    /// [`KeyError`] when it is empty or too long.
    pub fn new(text: &str) -> Result<Key, KeyError> {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        match text.len() {
            0 => Err(KeyError::Empty),
            1..=MAX_KEY_BYTES => {
                let hash = SEED.get_or_init(RandomState::new).hash_one(text);
                Ok(Key { text: text.into(), hash })
            }
            bytes => Err(KeyError::TooLong { bytes }),
        }
    }

    /// The key that is this text, which must be of TensorFlow's form.
    ///
    /// # Errors
    /// [`KeyError`] when it is not.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        let key = Key::new(text)?;
        key.parts()?;
        Ok(key)
    }

    /// The key of these parts.
    ///
    /// # Errors
    /// [`KeyError`] when one of them holds a `;`, a device or the name is empty, or the whole is too long.
    pub fn build(parts: &Parts<'_>) -> Result<Key, KeyError> {
        for part in [parts.send_device, parts.recv_device, parts.tensor_name] {
            if part.contains(';') {
                return Err(KeyError::Separator { part: shown(part) });
            }
        }
        Key::parse(&parts.to_string())
    }

    /// The key in full.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The parts of a key of TensorFlow's form.
    ///
    /// # Errors
    /// [`KeyError::Form`] when it has another one.
    pub fn parts(&self) -> Result<Parts<'_>, KeyError> {
        let bad = |why: String| KeyError::Form { text: shown(&self.text), why };
        let mut all = self.text.split(';');
        let mut next = || all.next().unwrap_or_default();
        let (send_device, incarnation, recv_device) = (next(), next(), next());
        let (tensor_name, place) = (next(), next());
        let found = self.text.split(';').count();
        if found != 5 {
            return Err(bad(format!("it has {found} parts, not 5")));
        }
        for (part, what) in
            [(send_device, "sending device"), (recv_device, "receiving device"), (tensor_name, "tensor name")]
        {
            if part.is_empty() {
                return Err(bad(format!("its {what} is empty")));
            }
        }
        let hexadecimal = incarnation.len() == 16 && incarnation.bytes().all(|b| b.is_ascii_hexdigit());
        let send_incarnation = u64::from_str_radix(incarnation, 16).ok().filter(|_| hexadecimal);
        let send_incarnation = send_incarnation.ok_or_else(|| {
            bad(format!("its incarnation {:?} is not 16 hexadecimal digits", shown(incarnation)))
        })?;
        let numbers = place.split_once(':').and_then(|(frame, iteration)| {
            Some((frame.parse::<u64>().ok()?, iteration.parse::<i64>().ok()?))
        });
        let (frame, iteration) =
            numbers.ok_or_else(|| bad(format!("its end {:?} is not frame:iteration", shown(place))))?;
        Ok(Parts { send_device, send_incarnation, recv_device, tensor_name, frame, iteration })
    }
}

impl fmt::Display for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { send_device, send_incarnation, recv_device, tensor_name, frame, iteration } = self;
        write!(f, "{send_device};{send_incarnation:016x};{recv_device};{tensor_name};{frame}:{iteration}")
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.text, &other.text) || self.text == other.text)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PS: &str = "/job:ps/replica:0/task:0/device:CPU:0";
    const WORKER: &str = "/job:worker/replica:0/task:1/device:CPU:0";

    #[test]
    fn keys_read_as_tensorflow_writes_them() {
        let parts = Parts {
            send_device: PS,
            send_incarnation: 0x0123_4567_89ab_cdef,
            recv_device: WORKER,
            tensor_name: "edge_7_w/read",
            frame: u64::MAX,
            iteration: -1,
        };
        let key = Key::build(&parts).unwrap();
        assert_eq!(
            key.text(),
            format!("{PS};0123456789abcdef;{WORKER};edge_7_w/read;18446744073709551615:-1")
        );
        assert_eq!(key.parts().unwrap(), parts);
        let again = Key::parse(key.text()).unwrap();
        assert!(again == key && Key::new("edge_7").unwrap() != key);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |text: &str| Key::parse(text).unwrap_err().to_string();
        assert!(said("").contains("empty"));
        assert!(said(&"x".repeat(5000)).contains("5000 bytes is over the limit of 4096"));
        assert!(said("a;b").contains("2 parts, not 5"));
        assert!(said("a;0;b;c;0:0").contains("16 hexadecimal digits"));
        assert!(said("a;+123456789abcdef;b;c;0:0").contains("16 hexadecimal digits"));
        assert!(said("a;0123456789abcdef;b;c;0").contains("not frame:iteration"));
        assert!(said("a;0123456789abcdef;;c;0:0").contains("receiving device is empty"));
        let parts = Key::parse("a;0123456789abcdef;b;c;0:0").unwrap();
        let parts = Parts { tensor_name: "x;y", ..parts.parts().unwrap() };
        assert!(matches!(Key::build(&parts), Err(KeyError::Separator { .. })));
        assert!(Key::new("any text").unwrap().parts().is_err());
        // Cut between characters.
        assert!(said(&format!("{};;;;", "é".repeat(400))).len() < 500);
    }
}
