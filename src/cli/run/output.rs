//! Marks every line of the ranks' output with the rank it came from.
//!
//! - I1: lines are written whole and never mixed, whatever the ranks do; a line of one rank keeps its order.
//! - I2: a reader that has gone away (`| head`) closes the ranks' pipes, so that they end as they would without a
//!   launcher between.
//! - I3: everything that the ranks wrote before they ended is written before the launcher ends.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

/// A longer line is broken there, so that a rank that never ends a line cannot fill memory.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// How much is read from a rank in one go.
const READ_BYTES: usize = 64 * 1024;

/// Colours of ranks in turn: green, yellow, blue, magenta, cyan, and their bright forms.
const COLOURS: [u8; 10] = [32, 33, 34, 35, 36, 92, 93, 94, 95, 96];

/// Which of the launcher's streams a rank's stream goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One stream of one rank.
pub(super) struct Stream {
    pipe: File,
    to: To,
    lines: Lines,
}

impl Stream {
    /// Takes over the reading end of a rank's stream.
    pub(super) fn new(pipe: OwnedFd, to: To, rank: u32, ranks: u32) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let coloured = match to {
            To::Stdout => is_coloured(&io::stdout()),
            To::Stderr => is_coloured(&io::stderr()),
        };
        Ok(Stream { pipe: File::from(pipe), to, lines: Lines::new(tag(rank, ranks, coloured)) })
    }

    /// Reads what is there and writes its whole lines; false at the end of either side.
    fn pump(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> bool {
        loop {
            out.clear();
            let read = self.pipe.read(buffer);
            match &read {
                Ok(0) => self.lines.finish(out),
                Ok(n) => self.lines.push(&buffer[..*n], out),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => self.lines.finish(out),
            }
            // I2: when writing fails, the pipe is dropped.
            if self.write(out).is_err() || !matches!(read, Ok(n) if n > 0) {
                return false;
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match self.to {
            _ if bytes.is_empty() => Ok(()),
            To::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes).and_then(|()| stdout.flush())
            }
            To::Stderr => io::stderr().lock().write_all(bytes),
        }
    }
}

/// Whether ANSI colours suit a stream: a terminal, unless NO_COLOR or CLICOLOR_FORCE say otherwise.
fn is_coloured(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

fn tag(rank: u32, ranks: u32, coloured: bool) -> String {
    let width = ranks.saturating_sub(1).to_string().len();
    if coloured {
        let colour = COLOURS[rank as usize % COLOURS.len()];
        format!("\x1b[{colour}m[{rank:width$}]\x1b[0m ")
    } else {
        format!("[{rank:width$}] ")
    }
}

/// Cuts a stream into tagged lines. Pure.
#[derive(Debug)]
struct Lines {
    tag: String,
    partial: Vec<u8>,
}

impl Lines {
    fn new(tag: String) -> Self {
        Lines { tag, partial: Vec::new() }
    }

    /// Adds bytes, and appends the lines that are whole now to `out`.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= MAX_LINE_BYTES {
                self.finish(out);
            }
        }
    }

    /// Appends what is left, ending the line.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        out.extend_from_slice(self.tag.as_bytes());
        out.append(&mut self.partial);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

/// The thread that reads the ranks' streams and writes tagged lines.
pub(super) struct Output {
    thread: JoinHandle<()>,
    /// Dropped to say that the ranks have ended.
    _running: io::PipeWriter,
}

impl Output {
    /// Starts it.
    pub(super) fn start(streams: Vec<Stream>) -> io::Result<Self> {
        let (ended, running) = io::pipe()?;
        let thread =
            std::thread::Builder::new().name("output".to_owned()).spawn(move || pump_all(streams, &ended))?;
        Ok(Output { thread, _running: running })
    }

    /// Waits until everything is written (I3). Call it when the ranks have ended: what a process that outlived
    /// them still writes is not waited for.
    pub(super) fn finish(self) {
        drop(self._running);
        // The thread ends by itself; if it panicked, it has printed so.
        let _ = self.thread.join();
    }
}

fn pump_all(mut streams: Vec<Stream>, ended: &PipeReader) {
    let mut buffer = vec![0; READ_BYTES];
    let mut out = Vec::new();
    while !streams.is_empty() {
        let over = {
            let fds = streams.iter().map(|stream| stream.pipe.as_fd()).chain([ended.as_fd()]);
            let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let polled = poll(&mut fds, None);
            polled.is_ok() && fds.last().is_some_and(|fd| !fd.revents().is_empty())
        };
        // Reading a pipe that has nothing is one cheap call, and only the ones with something come back often.
        streams.retain_mut(|stream| stream.pump(&mut buffer, &mut out));
        if over {
            break;
        }
    }
    for stream in &mut streams {
        out.clear();
        stream.lines.finish(&mut out);
        let _ = stream.write(&out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(pieces: &[&str]) -> String {
        let mut lines = Lines::new("[0] ".into());
        let mut out = Vec::new();
        for piece in pieces {
            lines.push(piece.as_bytes(), &mut out);
        }
        lines.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    /// I1.
    #[test]
    fn lines_are_whole() {
        assert_eq!(tagged(&["a\nb\n"]), "[0] a\n[0] b\n");
        assert_eq!(tagged(&["a", "b", "\nc"]), "[0] ab\n[0] c\n");
        assert_eq!(tagged(&["\n\n"]), "[0] \n[0] \n");
        assert_eq!(tagged(&[]), "");
    }

    #[test]
    fn a_line_without_end_is_broken() {
        let long = "x".repeat(MAX_LINE_BYTES + 5);
        let mut lines = Lines::new("[0] ".into());
        let mut out = Vec::new();
        for chunk in long.as_bytes().chunks(1000) {
            lines.push(chunk, &mut out);
        }
        assert!(out.ends_with(b"\n") && out.len() > MAX_LINE_BYTES);
        assert!(lines.partial.len() < 1000);
    }

    #[test]
    fn tags_line_up() {
        assert_eq!(tag(3, 12, false), "[ 3] ");
        assert_eq!(tag(3, 4, false), "[3] ");
        assert_eq!(tag(0, 4, true), "\x1b[32m[0]\x1b[0m ");
    }
}
