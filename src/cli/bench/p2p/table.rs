//! A row of `ringway bench p2p`: perftest's figures.

use crate::cli::bench::printer::{Line, wrong};
use crate::cli::bench::table::{percentile, time};
use serde::Serialize;
use std::time::Duration;

/// Half round trips of one size, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Latency {
    pub round_trips: u64,
    pub min_us: f64,
    /// The median: perftest's t_typical.
    pub typical_us: f64,
    pub avg_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// Of half round trips in any order.
    pub(super) fn of(mut times: Vec<f64>) -> Latency {
        times.sort_by(f64::total_cmp);
        Latency {
            round_trips: times.len() as u64,
            min_us: percentile(&times, 0.0),
            typical_us: percentile(&times, 0.5),
            avg_us: times.iter().sum::<f64>() / times.len().max(1) as f64,
            p99_us: percentile(&times, 0.99),
            max_us: percentile(&times, 1.0),
        }
    }
}

/// A stream of messages of one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bandwidth {
    /// Per direction.
    pub messages: u64,
    pub directions: u64,
    /// Under way at once, per direction, at most.
    pub window: u64,
    /// 2^20 bytes a second, of all directions.
    pub mib_s: f64,
    /// Millions of messages a second, of all directions.
    pub rate_m_s: f64,
}

impl Bandwidth {
    /// Of `messages` of `bytes` in each direction, which took so long together.
    pub(super) fn of(messages: u64, directions: u64, window: u64, bytes: u64, took: Duration) -> Bandwidth {
        let rate_s = (messages * directions) as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE);
        let mib_s = rate_s * bytes as f64 / f64::from(1 << 20);
        Bandwidth { messages, directions, window, mib_s, rate_m_s: rate_s / 1e6 }
    }
}

/// One measured size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub op: &'static str,
    pub size_bytes: u64,
    /// Absent when only bandwidth is measured.
    pub latency: Option<Latency>,
    /// Absent when only latency is measured.
    pub bandwidth: Option<Bandwidth>,
    /// Bytes that were not what they must be; absent when checking is off.
    pub wrong: Option<u64>,
    pub transport: String,
}

impl Line for Row {
    const NOTE: &'static str = "times are of half a round trip; MiB/s is what perftest calls MB/sec";
    const HEAD: [&'static str; 2] = [
        "#       size   trips    t_min    t_typ    t_avg    t_p99    t_max  messages     MiB/s      rate  #wrong  transport",
        "#        (B)             (us)     (us)     (us)     (us)     (us)                         (M/s)",
    ];
    const CSV_HEAD: &'static str = "op,size_bytes,round_trips,min_us,typical_us,avg_us,p99_us,max_us,messages,directions,window,mib_s,rate_m_s,wrong,\
         transport";
    const CHECKED: &'static str = "Wrong bytes";

    fn table(&self) -> String {
        let wrong = wrong(self.wrong);
        let absent = || "-".to_owned();
        let latency = match &self.latency {
            Some(l) => {
                let times = [l.min_us, l.typical_us, l.avg_us, l.p99_us, l.max_us].map(time);
                [&[l.round_trips.to_string()], &times[..]].concat()
            }
            None => vec![absent(); 6],
        };
        let bandwidth = match &self.bandwidth {
            Some(b) => [b.messages.to_string(), format!("{:.2}", b.mib_s), format!("{:.6}", b.rate_m_s)],
            None => [absent(), absent(), absent()],
        };
        let [trips, min, typical, avg, p99, max] = &latency[..] else { unreachable!("six columns") };
        let [messages, mib_s, rate] = &bandwidth;
        format!(
            "{:>12}  {trips:>6}  {min:>7}  {typical:>7}  {avg:>7}  {p99:>7}  {max:>7}  {messages:>8}  {mib_s:>8}  {rate:>8}  \
             {wrong:>6}  {}",
            self.size_bytes, self.transport,
        )
    }

    fn csv(&self) -> String {
        let wrong = wrong(self.wrong);
        let latency = self.latency.as_ref().map_or(",,,,,".to_owned(), |l| {
            format!(
                "{},{:.3},{:.3},{:.3},{:.3},{:.3}",
                l.round_trips, l.min_us, l.typical_us, l.avg_us, l.p99_us, l.max_us
            )
        });
        let bandwidth = self.bandwidth.as_ref().map_or(",,,,".to_owned(), |b| {
            format!("{},{},{},{:.3},{:.6}", b.messages, b.directions, b.window, b.mib_s, b.rate_m_s)
        });
        format!("{},{},{latency},{bandwidth},{wrong},{}", self.op, self.size_bytes, self.transport)
    }

    fn wrong(&self) -> Option<u64> {
        self.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::printer::{Format, printed};

    fn row(latency: bool, bandwidth: bool, wrong: Option<u64>) -> Row {
        Row {
            op: "send",
            size_bytes: 8,
            latency: latency.then(|| Latency::of(vec![3.0, 1.0, 2.0])),
            bandwidth: bandwidth.then(|| Bandwidth::of(100, 2, 64, 1 << 20, Duration::from_secs(2))),
            wrong,
            transport: "uring".into(),
        }
    }

    #[test]
    fn figures_are_those_of_perftest() {
        let l = Latency::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((l.round_trips, l.min_us, l.typical_us, l.avg_us, l.max_us), (3, 1.0, 2.0, 2.0, 3.0));
        let b = Bandwidth::of(100, 2, 64, 1 << 20, Duration::from_secs(2));
        assert_eq!((b.mib_s, b.rate_m_s), (100.0, 0.0001));
    }

    #[test]
    fn every_row_has_all_columns() {
        for (latency, bandwidth) in [(true, true), (true, false), (false, true)] {
            let csv = printed(Format::Csv, [row(latency, bandwidth, Some(0))]);
            let columns: Vec<usize> = csv.lines().map(|l| l.split(',').count()).collect();
            assert_eq!(columns, [15, 15], "{csv}");
            let table = printed(Format::Table, [row(latency, bandwidth, Some(0))]);
            let last = table.lines().find(|l| !l.starts_with('#')).unwrap();
            assert_eq!(last.split_whitespace().count(), 12, "{table}");
        }
    }

    #[test]
    fn wrong_bytes_are_never_hidden() {
        assert!(printed(Format::Table, [row(true, true, Some(3))]).contains("3 FAILED"));
        assert!(printed(Format::Table, [row(true, true, Some(0))]).contains("0 OK"));
        assert!(printed(Format::Table, [row(true, true, None)]).contains("not checked"));
        let json: serde_json::Value =
            serde_json::from_str(&printed(Format::Json, [row(true, false, Some(3))])).unwrap();
        assert_eq!((json["wrong"].as_u64(), json["rows"][0]["bandwidth"].is_null()), (Some(3), true));
    }
}
