// What each figure means, once for the whole page: as the description of its label, and on the screen of definitions.

export const DEFINITIONS = {
  "Worst sink": "The live sink that is furthest behind in seconds, or the first one that doesn't get further at all.",
  "Slot is full in":
    "How long until the server may remove WAL that the slot needs, if nobody reads it and WAL goes on to be written at " +
    "today's rate.",
  "Seconds behind": "What was committed longer ago than that is there. 0 when it has all that the WAL holds.",
  "Bytes behind": "WAL between a stage's position and the WAL's end. Other tables fill the WAL too.",
  "Events behind": "Records between a sink's next offsets and the ends of its topics, transaction markers included.",
  "Rate": "Events a second, as measured between two samples.",
  "WAL rate": "Bytes of WAL a second that the server writes, for all of its databases.",
  "Retained WAL": "WAL that the slot makes the server keep.",
  "WAL status":
    "PostgreSQL's word for the slot: reserved is well, extended holds more than max_wal_size, unreserved is about to be " +
    "lost, lost is over.",
  "Room left": "WAL that can still be written before the slot may be lost. Unknown where the server sets no limit.",
  "WAL end": "The position that the server writes at now.",
  "Confirmed": "The position up to which capture has confirmed to the server: everything before it is in Kafka.",
  "Watermark": "An LSN up to which everything has been applied.",
  "Open rejections": "Events that a sink refused for good, which no newer event of the key has replaced yet.",
  "Verified through": "The LSN at which a comparison found every row of the sink equal to the source.",
  "Shape": "The number of the table's columns, types and key in the control topic of shapes.",
  "Generation": "One physical build of a sink's data. Readers see the live one.",
  "Tag": "The source position of a change: the version of a row, everywhere.",
};

/** The description of a label, as the properties of its element. */
export function defined(label) {
  return DEFINITIONS[label] ? { title: DEFINITIONS[label] } : {};
}
