//! Files that a user names: read to a limit, since a device or another file named by mistake may have no end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The text of a file of at most `limit_bytes` bytes.
///
/// # Errors
/// What the system says; `FileTooLarge` for a longer one, and `InvalidData` for one that is no UTF-8.
pub fn read_text(path: impl AsRef<Path>, limit_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        let why = format!("longer than {limit_bytes} bytes, which no such file is");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_to_their_limit_and_no_further() {
        let path = std::env::temp_dir().join(format!("ringway-text-{}", std::process::id()));
        std::fs::write(&path, "aé").unwrap();
        assert_eq!(read_text(&path, 3).unwrap(), "aé");
        let told = |limit_bytes| read_text(&path, limit_bytes).unwrap_err();
        // Also where the limit lies within a letter.
        for limit_bytes in [0, 1, 2] {
            assert!(told(limit_bytes).to_string().starts_with(&format!("longer than {limit_bytes} bytes")));
        }
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(told(u64::MAX).kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(told(3).kind(), io::ErrorKind::NotFound);
        assert_eq!(read_text("/dev/zero", 1000).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
