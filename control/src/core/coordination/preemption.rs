//! The notice that a machine is about to be taken away: a key that all tasks may wait for, as TensorFlow's and JAX's do.
//!
//! JAX's preemption manager waits for [`NOTICE_KEY`], whose value is the time of the end; then all tasks agree, by keys and
//! a barrier of their own, at which step to save. TensorFlow's PreemptionWatcher waits for [`TENSORFLOW_KEY`], whose value
//! is any text. A task that is told to end by SIGTERM writes the key of its kind; so does the service when its own process
//! is told, and then both.

/// Read by JAX's tasks and Ringway's; its value is a time, as [`time_text`] writes it.
pub const NOTICE_KEY: &str = "RECEIVED_PREEMPTION_NOTICE";
/// Read by TensorFlow's tasks; its value says who was told.
pub const TENSORFLOW_KEY: &str = "TF_DEFAULT_PREEMPTION_NOTICE_KEY";

const DAY_S: i64 = 24 * 3600;

/// A time in seconds since 1970, as RFC 3339 has it, in UTC: `2026-11-29T23:21:11+00:00`.
#[must_use]
pub fn time_text(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(DAY_S), seconds.rem_euclid(DAY_S));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00")
}

/// The time in such a text, in seconds since 1970, fractions dropped; `None` when it is no such time.
#[must_use]
pub fn parse_time(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once('T')?;
    let zone_at = rest.find(['+', '-', 'Z'])?;
    let (clock, zone) = rest.split_at(zone_at);
    let [year, month, day] = numbers(date, '-')?;
    let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
    let [hour, minute, second] = numbers(clock, ':')?;
    let offset = match zone.split_at(1) {
        ("Z", "") => 0,
        (sign, offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let [hours, minutes] = [hours, minutes].map(|number| number.parse::<u8>().ok().map(i64::from));
            let span =
                hours.filter(|&hours| hours < 24)? * 3600 + minutes.filter(|&minutes| minutes < 60)? * 60;
            if sign == "-" { -span } else { span }
        }
    };
    let sound = (0..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let sound = sound && hour < 24 && minute < 60 && second <= 60;
    sound.then(|| days(year, month, day) * DAY_S + hour * 3600 + minute * 60 + second - offset)
}

fn numbers(text: &str, between: char) -> Option<[i64; 3]> {
    let mut parts = text.split(between).map(|part| part.parse::<u32>().ok().map(i64::from));
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}

/// Year, month and day of a day since 1970, by eras of 400 years that begin in March (Hinnant, "chrono-compatible
/// low-level date algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, of_year - (153 * from_march + 2) / 5 + 1)
}

/// The inverse of [`civil`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        let known = [
            (0, "1970-01-01T00:00:00+00:00"),
            (951_782_400, "2000-02-29T00:00:00+00:00"),
            (1_795_994_471, "2026-11-29T23:21:11+00:00"),
            (-1, "1969-12-31T23:59:59+00:00"),
        ];
        for (seconds, text) in known {
            assert_eq!((time_text(seconds).as_str(), parse_time(text)), (text, Some(seconds)));
        }
        for days in (-200_000..800_000).step_by(97) {
            assert_eq!(parse_time(&time_text(days * DAY_S + 7)), Some(days * DAY_S + 7), "day {days}");
        }
    }

    #[test]
    fn times_of_others_are_read() {
        assert_eq!(parse_time("1970-01-01T01:00:00.25+01:00"), Some(0));
        assert_eq!(parse_time("1969-12-31T23:30:00-00:30"), Some(0));
        assert_eq!(parse_time("1970-01-01T00:00:09Z"), Some(9));
        for none in [
            "",
            "soon",
            "1970-13-01T00:00:00Z",
            "1970-01-01T25:00:00Z",
            "1970-01-01 00:00:00Z",
            "1970-01-01T00:00:00+9223372036854775807:00",
            "1970-01-01T00:00:00+00:-1",
            "infinite-future",
        ] {
            assert_eq!(parse_time(none), None, "{none}");
        }
    }
}
