"""Events of recordings that have a stim channel and no annotations."""

import mne

_NO_EVENTS = ("bad", "edge", "boundary", "new segment")  # what annotations that begin no trial begin with


def events_of_stim_channel(raw: mne.io.BaseRaw) -> list[str]:
    """Give a recording without events those of its stim channel as annotations, each named by its code.

    Of several channels the first that has any; only the lower 16 bits count, the others are the recorder's status.
    Returns what to note.
    """
    if any(not str(text).casefold().startswith(_NO_EVENTS) for text in raw.annotations.description):
        return []
    for channel in (raw.ch_names[index] for index in mne.pick_types(raw.info, meg=False, stim=True)):
        events = mne.find_events(
            raw, channel, shortest_event=1, mask=0xFFFF, mask_type="and", uint_cast=True, verbose="ERROR"
        )
        if not len(events):
            continue
        for sample, code in events[:, [0, 2]]:
            raw.annotations.append(float(sample / raw.info["sfreq"]), 0.0, str(code))
        return [f"no annotations, so the events are those of the stim channel {channel}"]
    return []
