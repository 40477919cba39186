//! The format of profiles: a gzip-compressed protobuf message, `proto/profile.proto` of github.com/google/pprof.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

/// CPU time of a process.
#[derive(Debug, Default)]
pub(super) struct CpuProfile {
    /// When it was started, in nanoseconds since 1970.
    pub started_nanos: i64,
    pub duration_nanos: i64,
    /// Between two samples.
    pub period_nanos: i64,
    pub stacks: Vec<Stack>,
    /// That of the program is the first.
    pub mappings: Vec<Mapping>,
    /// The functions at an address, the innermost (inlined) one first; without those whose symbols are not known.
    pub functions: BTreeMap<u64, Vec<Function>>,
}

/// Samples with the same stack.
#[derive(Debug)]
pub(super) struct Stack {
    /// The innermost first.
    pub addresses: Vec<u64>,
    pub thread: String,
    pub n_samples: i64,
}

/// A function, and where in it the address is.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub name: String,
    pub file: String,
    pub line: i64,
}

/// A part of a file in memory that can be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub file: String,
}

impl Mapping {
    /// Those in the text of `/proc/self/maps`. Lines that are not understood are left out.
    pub fn executable(maps: &str) -> Vec<Mapping> {
        maps.lines().filter_map(Mapping::from_line).collect()
    }

    /// A line: `start-end permissions offset device inode file`.
    fn from_line(line: &str) -> Option<Mapping> {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        fields.next().filter(|permissions| permissions.contains('x'))?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let offset = hex(fields.next()?)?;
        // A name can contain spaces.
        let file = line.splitn(6, ' ').last().unwrap_or_default().trim_start().to_owned();
        Some(Mapping { start: hex(start)?, end: hex(end)?, offset, file })
    }
}

impl CpuProfile {
    /// The file.
    pub fn to_gzip(&self) -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&self.to_message().encode_to_vec())?;
        encoder.finish()
    }

    fn to_message(&self) -> ProfileMessage {
        let mut strings = Strings::default();
        strings.number("");
        let samples =
            ValueTypeMessage { kind: strings.number("samples"), unit: strings.number("count") };
        let cpu =
            ValueTypeMessage { kind: strings.number("cpu"), unit: strings.number("nanoseconds") };
        let thread = strings.number("thread");
        let mut location_ids: BTreeMap<u64, u64> = BTreeMap::new();
        let sample = self.stacks.iter().map(|stack| {
            let location_id = stack.addresses.iter().map(|address| {
                let next = location_ids.len() as u64 + 1;
                *location_ids.entry(*address).or_insert(next)
            });
            SampleMessage {
                location_id: location_id.collect(),
                value: vec![stack.n_samples, stack.n_samples.saturating_mul(self.period_nanos)],
                label: vec![LabelMessage { key: thread, text: strings.number(&stack.thread) }],
            }
        });
        let sample = sample.collect();
        let mut function = Vec::new();
        let mut function_ids: BTreeMap<(i64, i64), u64> = BTreeMap::new();
        let location = location_ids.iter().map(|(&address, &id)| {
            let line = self.functions.get(&address).into_iter().flatten().map(|it| {
                let (name, file) = (strings.number(&it.name), strings.number(&it.file));
                let next = function_ids.len() as u64 + 1;
                let id = *function_ids.entry((name, file)).or_insert_with(|| {
                    function.push(FunctionMessage {
                        id: next,
                        name,
                        system_name: name,
                        filename: file,
                    });
                    next
                });
                LineMessage { function_id: id, line: it.line }
            });
            LocationMessage {
                id,
                mapping_id: self.mapping_id(address),
                address,
                line: line.collect(),
            }
        });
        let location: Vec<LocationMessage> = location.collect();
        let mapping = self.mappings.iter().enumerate().map(|(nth, it)| {
            let id = nth as u64 + 1;
            let mut own = location.iter().filter(|location| location.mapping_id == id).peekable();
            MappingMessage {
                id,
                memory_start: it.start,
                memory_limit: it.end,
                file_offset: it.offset,
                filename: strings.number(&it.file),
                // Else pprof looks for the symbols in the file. The file's build ID is not given: a build with symbols has another one, and would
                // not be used.
                has_functions: own.peek().is_some()
                    && own.all(|location| !location.line.is_empty()),
            }
        });
        ProfileMessage {
            sample_type: vec![samples, cpu.clone()],
            sample,
            mapping: mapping.collect(),
            location,
            function,
            time_nanos: self.started_nanos,
            duration_nanos: self.duration_nanos,
            period_type: Some(cpu),
            period: self.period_nanos,
            string_table: strings.all,
        }
    }

    /// The number of the mapping that contains the address; 0 for none.
    fn mapping_id(&self, address: u64) -> u64 {
        let nth = self.mappings.iter().position(|it| (it.start..it.end).contains(&address));
        nth.map_or(0, |nth| nth as u64 + 1)
    }
}

/// A table of strings, each once.
#[derive(Default)]
struct Strings {
    all: Vec<String>,
    numbers: BTreeMap<String, i64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProfileMessage {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueTypeMessage>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<SampleMessage>,
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<MappingMessage>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<LocationMessage>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<FunctionMessage>,
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueTypeMessage>,
    #[prost(int64, tag = "12")]
    pub period: i64,
}

/// Its fields are numbers of strings.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueTypeMessage {
    #[prost(int64, tag = "1")]
    pub kind: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SampleMessage {
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<LabelMessage>,
}

/// Its fields are numbers of strings.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LabelMessage {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub text: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MappingMessage {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// The number of a string.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LocationMessage {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub address: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<LineMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LineMessage {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FunctionMessage {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The number of a string, as the fields below.
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    #[prost(int64, tag = "4")]
    pub filename: i64,
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn executable_parts_of_files_are_found() {
        let maps = "\
5580a0000000-5580a0100000 r--p 00000000 fe:00 42   /usr/bin/loadmaster
5580a0100000-5580a0200000 r-xp 000ff000 fe:00 42   /usr/bin/load master
7f00a0100000-7f00a0200000 rw-p 00000000 00:00 0
7ffd10000000-7ffd10002000 r-xp 00000000 00:00 0    [vdso]
nonsense
";
        let program = Mapping {
            start: 0x5580_a010_0000,
            end: 0x5580_a020_0000,
            offset: 0xff000,
            file: "/usr/bin/load master".to_owned(),
        };
        let found = Mapping::executable(maps);
        let files: Vec<&str> = found.iter().map(|it| it.file.as_str()).collect();
        assert_eq!(files, ["/usr/bin/load master", "[vdso]"]);
        assert_eq!(found[0], program);
    }

    #[test]
    fn a_file_is_decoded_again() {
        let function =
            |name: &str| Function { name: name.to_owned(), file: "a.rs".to_owned(), line: 7 };
        let mapping = |start, file: &str| Mapping {
            start,
            end: start + 100,
            offset: 0,
            file: file.to_owned(),
        };
        let stack = |addresses: &[u64], n_samples| Stack {
            addresses: addresses.to_vec(),
            thread: "engine".to_owned(),
            n_samples,
        };
        let profile = CpuProfile {
            period_nanos: 10,
            stacks: vec![stack(&[1_010, 1_020], 3), stack(&[1_010, 2_010], 1)],
            mappings: vec![mapping(1_000, "program"), mapping(2_000, "libc")],
            functions: [
                (1_010, vec![function("inlined"), function("outer")]),
                (1_020, vec![function("outer")]),
            ]
            .into(),
            ..CpuProfile::default()
        };
        let mut bytes = Vec::new();
        GzDecoder::new(profile.to_gzip().unwrap().as_slice()).read_to_end(&mut bytes).unwrap();
        let message = ProfileMessage::decode(bytes.as_slice()).unwrap();
        assert_eq!(message, profile.to_message());
        let text = |number: i64| message.string_table[number as usize].as_str();
        let values: Vec<&[i64]> = message.sample.iter().map(|it| it.value.as_slice()).collect();
        assert_eq!(values, [[3, 30], [1, 10]]);
        assert_eq!(message.sample[1].location_id, [1, 3]);
        assert_eq!(text(message.sample[0].label[0].text), "engine");
        let functions: Vec<&str> = message.function.iter().map(|it| text(it.name)).collect();
        assert_eq!(functions, ["inlined", "outer"]);
        let mappings: Vec<(&str, bool)> =
            message.mapping.iter().map(|it| (text(it.filename), it.has_functions)).collect();
        assert_eq!(mappings, [("program", true), ("libc", false)]);
        let of: Vec<u64> = message.location.iter().map(|it| it.mapping_id).collect();
        assert_eq!(of, [1, 1, 2]);
        assert_eq!(message.location[0].line.len(), 2);
        assert_eq!(text(0), "");
    }
}
