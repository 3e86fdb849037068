// The ways in which this library breaks on purpose.
#pragma once
#include "script.h"

namespace standin {

// Ends or stops the process or the thread; returns only for Submit and Matmul, which the engine answers itself.
void strike(FaultKind kind);

// The fault of the script that is due, or null. `token` counts from 0 and matters for FaultPlace::Token only. A fault with
// `once` uses itself up here.
const Fault* fault_due(const Script& script, FaultPlace at, long token, const std::string& prompt);

}  // namespace standin
