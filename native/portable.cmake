# Read by CMake in place of libllama.cmake for the wheel of a release: see bundle.py.
include("${CMAKE_CURRENT_LIST_DIR}/libllama.cmake")

# ggml compiles its processor's backend once for each of fourteen instruction sets, which takes half an hour. Half of
# them would gain little over a neighbour that stays, and get one empty source instead; bundle.py leaves them out.
set(COROSRV_CPU_VARIANTS x64 haswell alderlake skylakex icelake zen4 sapphirerapids)

function(corosrv_drop_cpu_variants)
  file(WRITE "${CMAKE_BINARY_DIR}/dropped.cpp" "")
  foreach(variant x64 sse42 sandybridge ivybridge piledriver haswell skylakex cannonlake cascadelake cooperlake icelake
                  zen4 alderlake sapphirerapids)
    if(TARGET ggml-cpu-${variant} AND NOT variant IN_LIST COROSRV_CPU_VARIANTS)
      set_property(TARGET ggml-cpu-${variant} PROPERTY SOURCES "${CMAKE_BINARY_DIR}/dropped.cpp")
    endif()
  endforeach()
endfunction()

if(PROJECT_NAME STREQUAL "ggml")
  cmake_language(DEFER CALL corosrv_drop_cpu_variants)
endif()

# llama-cpp-python's wheel has its own licence alone.
if(PROJECT_NAME STREQUAL "llama.cpp")
  set(licences "${SKBUILD_PLATLIB_DIR}/llama_cpp/licenses")
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${licences}" RENAME LICENSE-llama.cpp)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/licenses/" DESTINATION "${licences}")
endif()
