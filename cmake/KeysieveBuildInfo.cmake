# SPDX-License-Identifier: Apache-2.0
# Commit and dirty flag, compiled in by a step that runs at every build, so that a result names its source.
#
# Included by CMakeLists: keysieve_build_info(TARGET) adds the generated source to TARGET.
# Run as a script (cmake -P): writes OUTPUT if what it says has changed.

if(CMAKE_SCRIPT_MODE_FILE)
  string(REPEAT "0" 40 commit)  # outside a git checkout
  set(dirty "false")
  find_program(GIT git)
  if(GIT)
    execute_process(COMMAND ${GIT} rev-parse HEAD WORKING_DIRECTORY ${SOURCE_DIR}
      OUTPUT_VARIABLE head RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed)
      set(commit ${head})
      execute_process(COMMAND ${GIT} status --porcelain --untracked-files=no WORKING_DIRECTORY ${SOURCE_DIR}
        OUTPUT_VARIABLE changes ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(changes)
        set(dirty "true")
      endif()
    endif()
  endif()
  set(text "// Generated at build time.
#include \"build_info.hpp\"

namespace keysieve::cli {

const BuildInfo kBuildInfo = {\"${commit}\", ${dirty}};

}  // namespace keysieve::cli
")
  set(old "")
  if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} old)
  endif()
  if(NOT old STREQUAL text)
    file(WRITE ${OUTPUT} "${text}")
  endif()
  return()
endif()

set(KEYSIEVE_BUILD_INFO_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(keysieve_build_info target)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/build_info.cpp)
  add_custom_target(${target}_build_info
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${output} -P ${KEYSIEVE_BUILD_INFO_SCRIPT}
    BYPRODUCTS ${output}
    COMMENT "Commit of this build")
  target_sources(${target} PRIVATE ${output})
  add_dependencies(${target} ${target}_build_info)
endfunction()
