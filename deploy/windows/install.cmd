@echo off
rem Installs telaio as a service of Windows and starts it.
rem
rem   install.cmd OPTIONS OF `telaio run`
rem   install.cmd --source=kube:C:\k\config --node=win-1
rem
rem Run as an administrator, in the directory that has telaio.exe. An older one is replaced.
setlocal
set "HERE=%~dp0"
set "HOME_DIR=%ProgramFiles%\telaio"

if "%~1"=="" (
    echo telaio: name the options of `telaio run`, such as --source=kube:C:\k\config 1>&2
    exit /b 2
)
if not exist "%HERE%telaio.exe" (
    echo telaio: there is no telaio.exe in %HERE% 1>&2
    exit /b 1
)
if exist "%HOME_DIR%\telaio.exe" "%HOME_DIR%\telaio.exe" service uninstall
if not exist "%HOME_DIR%" mkdir "%HOME_DIR%"
copy /y "%HERE%telaio.exe" "%HOME_DIR%\telaio.exe" >nul
if errorlevel 1 exit /b 1
"%HOME_DIR%\telaio.exe" service install %*
if errorlevel 1 exit /b %errorlevel%
sc start telaio
exit /b %errorlevel%
