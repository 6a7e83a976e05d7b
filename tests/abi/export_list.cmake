# SPDX-License-Identifier: Apache-2.0
# Fails unless LIBRARY exports exactly the symbols listed in EXPECTED.
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${output}")
set(found "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE " .*" "" symbol "${line}")
  # The sanitizers and the C++ runtime add weak symbols of their own (type W or V, or reserved names).
  if(NOT line MATCHES " [WVuw] " AND NOT symbol MATCHES "^(_|asan|__)")
    list(APPEND found ${symbol})
  endif()
endforeach()
list(SORT found)
file(STRINGS ${EXPECTED} expected)
if(NOT found STREQUAL expected)
  message(FATAL_ERROR "exported symbols differ from ${EXPECTED}\nfound:    ${found}\nexpected: ${expected}")
endif()
