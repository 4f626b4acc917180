// Faults on request, to try out what a job does about them: a process asks at named points whether it is to end or stop
// there. MOTLEY_FAULTS names a folder; a file RANK.POINT in it (2.forward) with the text "kill", "stop" or "hang" (the
// thread sleeps for ever) is one fault, which happens to the first process that comes there, once: the file is gone
// then. With "wait" whoever comes there waits until the file is gone. "kill 1234" and "stop 1234" happen to that
// process instead, such as a server, and "continue 1234" to one that was stopped. Of a server's points RANK is that of
// one of its cores. Without MOTLEY_FAULTS a point costs nothing. docs/how-to/survive-lost-workers.md lists the points.
#pragma once

namespace motley {

// Whether any may be asked for.
bool has_injected_faults();
// Thread-safe. Spaces in the point's name are "-" in the file's.
void inject_fault(int rank, const char* point);

}  // namespace motley
